"""Fills the placeholders of the cases and builds their bodies."""

import gzip
import itertools
import json
import os
import random
import re
import uuid
import zlib

from answers import compress, dumps

rng = random.Random(7)
counter = itertools.count(1)
WORDS = (
    "red blue stone river cloud maple engine token cache wheel orbit lemon north quiet amber glass pixel drum".split()
)


def words(n):
    """About n characters of text that no other call returns."""
    out = f"u{next(counter)}-{rng.getrandbits(48):x}"
    while len(out) < n:
        out += " " + rng.choice(WORDS) + str(rng.randrange(1000))
    return out[: max(n, 16)]


def fixed(name, n):
    r = random.Random(name)
    out = f"You are assistant {name}."
    while len(out) < n:
        out += " " + r.choice(WORDS)
    return out[:n]


def b64(n, head=b""):
    import base64

    return (head + base64.b64encode(os.urandom(max(0, n - len(head)) * 3 // 4 + 3)))[:n].decode()


def tools():
    out = []
    for i in range(20):
        r = random.Random(i)
        props = [(f"p{j}", {"type": "string", "description": f"{r.choice(WORDS)} {j}"}) for j in range(4)]
        params = [("type", "object"), ("properties", dict(rng.sample(props, 4))), ("required", ["p0"])]
        out.append(
            {
                "type": "function",
                "function": {
                    "name": f"tool{i}",
                    "description": fixed(f"tool{i}", 120),
                    "parameters": dict(rng.sample(params, 3)),
                },
            }
        )
    return out


class Filler:
    """Per case: what `<...>` stands for. `n` is the number of the request in its step, `conv` its conversation."""

    def __init__(self, authority):
        self.authority, self.ids, self.fixed_id = authority, {}, uuid.uuid4().hex

    def text(self, s, n, conv):
        sys_text = lambda m: fixed("SYS" + (m.group(1) or "") + self.fixed_id, 12000)
        rules = [
            (r"<SYS(?:: fixed[^>]*|(-?\w+))?>", sys_text),
            (r"<unique random text per request>|<unique>", lambda m: words(60)),
            (r"<unique (\d+) (chars|kB)>", lambda m: words(int(m.group(1)) * (1 if m.group(2) == "chars" else 1000))),
            (r"<random (\d+) kB(?: each time)?>", lambda m: words(int(m.group(1)) * 1000)),
            (r"<random>", lambda m: uuid.uuid4().hex[:12]),
            (r"<40 different salts>", lambda m: f"salt-{n}-{self.fixed_id}"),
            (r"<one of (\d+) heads>", lambda m: fixed(f"head{rng.randrange(int(m.group(1)))}", 2000)),
            (r"<ss>\.<ms>", lambda m: f"{rng.randrange(60):02}.{rng.randrange(1000):03}"),
            (r"<uuid>", lambda m: str(uuid.uuid4())),
            (r"<5 random hex>", lambda m: f"{rng.getrandbits(20):05x}"),
            (r"<n>", lambda m: str(n)),
            (r"<64 KiB of 'x'>", lambda m: "x" * 65536),
            (r"<IMG1 1 MB>", lambda m: self.ids.setdefault("img1", b64(1 << 20))),
            (r"<IMG same head>", lambda m: self.ids.setdefault("imghead", b64(2048)) + b64((1 << 20) - 2048)),
            (r"<id(?: from step 1)?>", lambda m: self.ids.get("id", "none")),
        ]
        for pattern, value in rules:
            if "<" in s:
                s = re.sub(pattern, value, s)
        return s

    def fill(self, x, n=0, conv=""):
        if isinstance(x, str):
            if x == "<20 tools; keys inside each function.parameters in random order per request>":
                return tools()
            if x == "<conversation that grows by one user+assistant turn per request>":
                return self.turns(n, conv)
            return self.text(x, n, conv)
        if isinstance(x, dict):
            return {k: self.fill(v, n, conv) for k, v in x.items()}
        if isinstance(x, list):
            out = []
            for v in x:
                if isinstance(v, dict) and v.get("content") == "<growing conversation>":
                    out += self.turns(n, conv)
                else:
                    out.append(self.fill(v, n, conv))
            return out
        return x

    def turns(self, n, conv):
        out = []
        for i in range(n + 1):
            out += [
                {"role": "user", "content": fixed(f"{self.fixed_id}{conv}q{i}", 400)},
                {"role": "assistant", "content": fixed(f"{self.fixed_id}{conv}a{i}", 300)},
            ]
        return out[:-1]


def chat(text, **more):
    return {"model": "m1", "messages": [{"role": "user", "content": text}], **more}


def build(req, filler, n=0, conv=""):
    """The request with everything filled in, and its body's bytes."""
    req = {
        **req,
        "path": filler.fill(req["path"], n, conv),
        "headers": {k: filler.fill(v, n, conv) for k, v in req["headers"].items()},
    }
    recipe = req.get("body_recipe")
    if "size" in req:
        return req, dumps(req["body"]).replace(b"<N bytes of base64>", b64(req["size"]).encode())
    if recipe:
        return req, by_recipe(recipe)
    if "body_raw" in req:
        return req, filler.text(req["body_raw"], n, conv).encode()
    if "body_hex" in req:
        return req, bytes.fromhex(req["body_hex"])
    if "multipart" in req:
        return req, multipart(req)
    return req, dumps(filler.fill(req["body"], n, conv)) if "body" in req else b""


def by_recipe(recipe):
    if m := re.match(r"(zstd|gzip) of (\{.*)", recipe):
        return compress(m.group(1), m.group(2).encode())
    if recipe.startswith("gzip of 2 GiB"):
        return bomb()
    if m := re.search(r"(\d+) MB", recipe):
        return dumps(chat("x" * (int(m.group(1)) * 1000000)))
    if recipe.startswith("random 100"):
        return os.urandom(100)
    if recipe.startswith("valid gzip cut"):
        return gzip.compress(dumps(chat("hi")))[:20]
    if "200 objects deep" in recipe:
        deep = '{"p":' * 200 + "{}" + "}" * 200
        tool = '{"type":"function","function":{"name":"f","parameters":%s}}' % deep
        return b'{"model":"m1","messages":[{"role":"user","content":"hi"}],"tools":[%s]}' % tool.encode()
    if "100000 nested" in recipe:
        return b'{"model":"m1","messages":[{"role":"user","content":"hi"}],"x":%s%s}' % (b"[" * 100000, b"]" * 100000)
    raise KeyError(recipe)


def bomb():
    """One gzip member of 2 GiB of spaces and `{}`: one flushed deflate block run, repeated."""
    block = b" " * (64 << 20)
    c = zlib.compressobj(9, zlib.DEFLATED, -15)
    part = c.compress(block) + c.flush(zlib.Z_FULL_FLUSH)
    crc = 0
    for _ in range(32):
        crc = zlib.crc32(block, crc)
    crc = zlib.crc32(b"{}", crc)
    c = zlib.compressobj(9, zlib.DEFLATED, -15)
    tail = c.compress(b"{}") + c.flush()
    return (
        b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
        + part * 32
        + tail
        + crc.to_bytes(4, "little")
        + ((2 << 30) + 2).to_bytes(4, "little")
    )


def multipart(req):
    boundary = req["headers"]["content-type"].split("boundary=")[1]
    out = b""
    for p in req["multipart"]:
        disp = f'form-data; name="{p["name"]}"' + (
            f'; filename="{p["filename"].replace(chr(34), "%22")}"' if "filename" in p else ""
        )
        data = p.get("value", "").encode()
        if "bytes" in p:
            n, unit = p["bytes"].split()[:2]
            data = os.urandom(int(n) * (1000 if unit == "KB" else 1))
        out += (
            f"--{boundary}\r\nContent-Disposition: {disp}\r\n".encode()
            + (f"Content-Type: {p['content_type']}\r\n".encode() if "content_type" in p else b"")
            + b"\r\n"
            + data
            + b"\r\n"
        )
    return out + f"--{boundary}--\r\n".encode()


def loads(data):
    """JSON with key order, duplicates and number lexemes kept, for exact comparison."""
    return json.loads(
        data,
        object_pairs_hook=lambda p: ("obj", p),
        parse_float=lambda s: ("num", s),
        parse_int=lambda s: ("num", s),
        parse_constant=lambda s: ("num", s),
    )
