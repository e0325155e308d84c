"""What a scripted engine answers: the steps of a script, and the ready-made answers of the case file."""

import asyncio
import base64
import gzip
import hashlib
import json
import re

from frames import ws_frame, ws_read
from wire import get, now

REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    429: "Too Many Requests",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def dumps(obj):
    return json.dumps(obj, separators=(",", ":"), ensure_ascii=False).encode()


def chunk(delta, finish=None):
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m1",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def error_json(path, status, message):
    if path.startswith("/v1/messages"):
        return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": status}}


def compress(coding, data):
    if coding == "gzip":
        return gzip.compress(data, mtime=0)
    if coding == "br":
        import brotli

        return brotli.compress(data)
    if coding == "zstd":
        import zstandard

        return zstandard.ZstdCompressor().compress(data)
    return data


class Out:
    """Plays one answer and keeps what was written."""

    def __init__(self, engine, wire, rec):
        self.e, self.wire, self.rec = engine, wire, rec
        self.chunked = False
        self.keep = rec.http != "HTTP/1.0" and "close" not in ",".join(get(rec.headers, "connection")).lower()

    async def body(self, data):
        if self.rec.method == "HEAD" or not data:
            return
        self.rec.out.add(data)
        self.rec.writes.append((now(), self.rec.out.n))
        await self.wire.send(b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    async def head(self, status, headers):
        self.chunked = headers.get("transfer-encoding") == "chunked" and self.rec.http != "HTTP/1.0"
        lines = [f"{k}: {v}" for k, v in headers.items() if k != "transfer-encoding" or self.chunked]
        self.framed = self.chunked or "content-length" in headers or self.rec.method == "HEAD"
        if not self.framed or "close" in headers.get("connection", ""):
            self.keep = False
        self.rec.status, self.rec.out_headers, self.rec.t_head_out = status, list(headers.items()), now()
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'X')}", *lines, "", ""]
        await self.wire.send("\r\n".join(lines).encode("latin-1"))

    async def end(self):
        if self.chunked and self.rec.method != "HEAD":
            await self.wire.send(b"0\r\n\r\n")
        self.rec.answered = True
        if not self.keep:
            self.wire.fin()
            await asyncio.sleep(0)
        return self.keep

    async def json(self, status, obj):
        data = dumps(obj)
        await self.head(status, {"content-type": "application/json", "content-length": str(len(data))})
        await self.body(data)
        return await self.end()

    def recipe(self, text):
        if text.startswith("'data: '"):
            return b"data: " + dumps(chunk({"content": "x" * 2097152})) + b"\n\n"
        if text.startswith("gzip of "):
            return compress("gzip", text[8:].encode())
        if text.startswith("chat.completion JSON compressed"):
            return compress(self.coding(), dumps(ok_body("/v1/chat/completions", "m1")))
        raise KeyError(text)

    def coding(self):
        asked = ",".join(get(self.rec.headers, "accept-encoding"))
        return next((c for c in ("gzip", "br", "zstd") if c in asked), None)

    async def run(self, script):
        for i, s in enumerate(script):
            op = s["op"]
            if op == "head":
                headers = dict(s["headers"])
                for k, v in list(headers.items()):
                    if v in ("<compressed length>", "<n>"):
                        headers[k] = str(
                            len(self.recipe(next(x["recipe"] for x in script[i:] if x["op"] == "write_recipe")))
                        )
                    elif v == "<coding asked for>":
                        headers[k] = self.coding()
                        if headers[k] is None:
                            del headers[k]
                    elif k == "location":
                        headers[k] = v.replace("E1", self.e.authority).replace("sink.test:9", self.e.fleet.sink)
                await self.head(s["status"], headers)
            elif op == "write":
                await self.body(s["text"].encode())
            elif op == "write_hex":
                data, n = bytes.fromhex(s["hex"]), s.get("split_every") or len(s["hex"])
                for j in range(0, len(data), n):
                    await self.body(data[j : j + n])
                    await asyncio.sleep(s.get("gap_ms", 0) / 1000)
            elif op == "write_recipe":
                await self.body(self.recipe(s["recipe"]))
            elif op == "repeat":
                data = s["text"].encode() if "text" in s else b"data: " + b"y" * 65528 + b"\n\n"
                for _ in range(s["n"]):
                    await self.body(data)
                    await asyncio.sleep(s["gap_ms"] / 1000)
            elif op == "sleep_ms":
                await asyncio.sleep(s["ms"] / 1000 * self.e.fleet.scale)
            elif op == "end":
                return await self.end()
            elif op == "close":
                self.wire.fin()
                await asyncio.sleep(0.05)
                return False
            elif op == "rst":
                await asyncio.sleep(self.e.fleet.opt.get("rst_delay_ms", 0) / 1000)
                self.wire.rst()
                return False
            elif op == "hang":
                await asyncio.Event().wait()
            elif op == "canned":
                return await self.canned(s["name"])
            elif op == "websocket_echo":
                return await self.websocket(s.get("subprotocol"))
        return self.keep

    async def canned(self, name):
        rec, path = self.rec, self.rec.path
        if name in ("ok_json", "ok_json_fast"):
            return await self.json(
                200, ok_body(path, (rec.json() or {}).get("model", "m1") if isinstance(rec.json(), dict) else "m1")
            )
        if name.startswith("ok_sse"):
            await self.head(200, {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"})
            for i in range(5):
                await self.body(b"data: " + dumps(chunk({"content": f"t{i} "})) + b"\n\n")
                await asyncio.sleep(0.02)
            await self.body(b"data: " + dumps(chunk({}, "stop")) + b"\n\n")
            if name.endswith("usage_if_asked") and ((rec.json() or {}).get("stream_options") or {}).get(
                "include_usage"
            ):
                await self.body(
                    b"data: "
                    + dumps(
                        {
                            "id": "c1",
                            "object": "chat.completion.chunk",
                            "created": 1,
                            "model": "m1",
                            "choices": [],
                            "usage": {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8},
                        }
                    )
                    + b"\n\n"
                )
            await self.body(b"data: [DONE]\n\n")
            return await self.end()
        if name == "echo_if_json_else_400" and rec.json() is None:
            return await self.json(400, error_json(path, 400, "body is not JSON"))
        if name == "echo_model_strict":
            j = rec.json()
            form = re.search(rb'name="model"\r\n\r\n([^\r]*)', bytes(rec.body.data))
            model = j.get("model") if isinstance(j, dict) else form.group(1).decode() if form else None
            if model not in [m["id"] for m in self.e.models]:
                return await self.json(404, error_json(path, 404, f"The model `{model}` does not exist."))
        if name.startswith("stateful_"):
            return await self.stateful("file" if "files" in name else "resp")
        data = bytes(rec.body.data)
        return await self.json(
            200,
            {
                "engine": self.e.name,
                "method": rec.method,
                "target": rec.target,
                "http": rec.http,
                "headers": rec.headers,
                "framing": rec.framing,
                "body_sha256": rec.body.sha.hexdigest(),
                "body_b64": base64.b64encode(data).decode() if len(data) < 65536 else "",
                "trailers": rec.trailers,
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": "m1",
                "choices": [{"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}],
            },
        )

    async def stateful(self, kind):
        rec, ids = self.rec, self.e.ids
        asked = re.search(rf"({kind}[-_]\w+)", rec.path) or re.search(
            rf'previous_response_id":\s*"({kind}_\w+)"', bytes(rec.body.data).decode("latin-1")
        )
        if asked and asked.group(1) not in ids:
            return await self.json(404, error_json(rec.path, 404, "no such id here"))
        if asked and rec.method == "GET" or rec.path.endswith("/cancel"):
            return await self.json(
                200, {"id": asked.group(1) if asked else "", "object": "response", "status": "completed", "output": []}
            )
        if rec.method == "GET":
            return await self.json(200, {"object": "list", "data": [{"id": i} for i in sorted(ids)]})
        new = f"{kind}_{self.e.name}n{len(ids)}"
        ids.add(new)
        return await self.json(
            200, dict(ok_body("/v1/responses", "m1"), id=new, object="file" if kind == "file" else "response")
        )

    async def websocket(self, subprotocol):
        key = (get(self.rec.headers, "sec-websocket-key") or [""])[0]
        accept = base64.b64encode(
            hashlib.sha1((key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()
        ).decode()
        self.rec.status = 101
        await self.wire.send(
            f"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n"
            f"sec-websocket-accept: {accept}\r\nsec-websocket-protocol: {subprotocol}\r\n\r\n".encode()
        )
        while True:
            op, data = await ws_read(self.wire)
            await self.wire.send(ws_frame({9: 10}.get(op, op), data))
            if op == 8:
                self.rec.answered = True
                return False


def ok_body(path, model):
    use = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
    if path.endswith("/chat/completions"):
        return {
            "id": "c1",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "usage": use,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        }
    if path.endswith("/completions"):
        return {
            "id": "c1",
            "object": "text_completion",
            "created": 1,
            "model": model,
            "usage": use,
            "choices": [{"index": 0, "text": "hi", "logprobs": None, "finish_reason": "stop"}],
        }
    if path.endswith("/embeddings"):
        return {
            "object": "list",
            "model": model,
            "usage": use,
            "data": [{"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}],
        }
    if path.endswith("/messages"):
        return {
            "id": "g1",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [{"type": "text", "text": "hi"}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 3, "output_tokens": 1},
        }
    if "rerank" in path:
        return {"id": "k1", "model": model, "results": [{"index": 0, "relevance_score": 0.5}], "usage": use}
    return {
        "id": "resp_x",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": model,
        "usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4},
        "output": [
            {
                "type": "message",
                "id": "o1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "hi", "annotations": []}],
            }
        ],
    }
