"""Checks of what engines saw: bodies, headers, paths, counts."""

import re

from check import CHECKS, check, each, final, late, per_rec, short
from recipes import loads
from wire import get


@check("engine_body_equals_client_body")
@per_rec
def _(play, c, r, rec):
    if rec.t_abort or rec.body.same(r.sent):
        return None
    head = short(bytes(rec.body.data[:160]).decode("utf-8", "replace"), 160)
    return f"{rec.path}: engine got {rec.body.n} bytes, client sent {r.sent.n}: {head}"


CHECKS["first_engine_body_equals_client_body"] = lambda play, c: CHECKS["engine_body_equals_client_body"](
    play, {**c, "variant": 1}
)


@check("engine_json_equals_client_json")
@per_rec
def _(play, c, r, rec):
    if rec.body.same(r.sent):
        return None
    try:
        a, b = loads(bytes(r.sent.data)), loads(bytes(rec.body.data))
    except ValueError as e:
        return f"not JSON any more: {e}"
    if c.get("flattened_text_ok"):
        a, b = flat(a), flat(b)
    return None if a == b else f"{rec.path}: {short(diff(a, b))}"


def flat(v, key=None):
    """Content made of text parts only, as the string an engine would make of it, joined by a newline or nothing."""
    if isinstance(v, list):
        texts = [dict(p[1]) for p in v if isinstance(p, tuple) and p[0] == "obj"]
        if (
            key == "content"
            and v
            and len(texts) == len(v)
            and all(set(t) == {"type", "text"} and t["type"] == "text" for t in texts)
        ):
            return "".join(t["text"] for t in texts)
        return [flat(p) for p in v]
    if isinstance(v, tuple) and v[0] == "obj":
        return ("obj", [(k, flat(w, k)) for k, w in v[1]])
    return v.replace("\n", "") if key == "content" and isinstance(v, str) else v


def diff(a, b, at=""):
    if isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0] == "obj":
        ka, kb = [k for k, _ in a[1]], [k for k, _ in b[1]]
        if ka != kb:
            gone, new = [k for k in ka if k not in kb], [k for k in kb if k not in ka]
            return (
                f"{at or 'top'}: lost {gone} added {new}" if gone or new else f"{at or 'top'}: keys re-ordered to {kb}"
            )
        return next((diff(p[1], q[1], f"{at}.{p[0]}") for p, q in zip(a[1], b[1]) if p[1] != q[1]), f"{at}: other")
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return next((diff(p, q, f"{at}[{i}]") for i, (p, q) in enumerate(zip(a, b)) if p != q), f"{at}: other")
    return f"{at}: {short(repr(a), 40)} became {short(repr(b), 40)}"


@check("all_engine_bodies_identical")
def _(play, c):
    kinds = {r.body.sha.digest() for r in play.posts()}
    return [f"{len(kinds)} different upstream bodies"] if len(kinds) > 1 else []


@check("engine_sees")
@per_rec
def _(play, c, r, rec):
    coding = get(rec.headers, "content-encoding")
    plain = rec.json() is not None and not coding
    return (
        None
        if plain or (rec.body.same(r.sent) and coding == [r.req["headers"]["content-encoding"]])
        else f"coding {coding}, body {short(bytes(rec.body.data[:60]))}"
    )


@check("if_200_engine_body_one_of")
@per_rec
def _(play, c, r, rec):
    sent = bytes(r.sent.data)
    return (
        None
        if r.status != 200 or bytes(rec.body.data) in (sent, sent.removeprefix(b"\xef\xbb\xbf"))
        else f"body {short(bytes(rec.body.data))}"
    )


CHECKS["if_200_engine_owns_last_key"] = each(
    lambda play, c, r: (
        f"{final(r).engine.name} served it"
        if r.status == 200 and final(r) and final(r).engine.name != c["engine"]
        else None
    )
)


@check("engine_json_or_form_field")
@per_rec
def _(play, c, r, rec):
    j, form = rec.json(), re.search(rb'name="%s"\r\n\r\n([^\r]*)' % c["name"].encode(), bytes(rec.body.data))
    got = j.get(c["name"]) if isinstance(j, dict) else form.group(1).decode() if form else None
    return None if got == c["equals"] else f"{rec.path}: {c['name']} is {got!r}"


@check("only_model_field_changed")
@per_rec
def _(play, c, r, rec):
    want = re.sub(rb'("model":\s*|name="model"\r\n\r\n)("?)fast', rb"\1\2m1", bytes(r.sent.data), count=1)
    return (
        None
        if bytes(rec.body.data) == want
        else f"{rec.path}: body is {short(bytes(rec.body.data[:120]).decode('latin-1'))}"
    )


@check("engine_header")
@per_rec
def _(play, c, r, rec):
    got = get(rec.headers, c["name"])
    want = c.get("one_of") or [c["equals"]]
    names = {
        "<engine authority>": rec.engine.authority,
        "<engine host:port as configured>": rec.engine.authority,
        "[::1]:8001": rec.engine.authority,
        "<as client>": r.req["headers"].get(c["name"]),
    }
    want = [names.get(w, w) for w in want]
    return None if (got or [None])[0] in want and len(got) < 2 else f"engine saw {c['name']}: {got}, not {want}"


CHECKS["engine_header_absent"] = per_rec(
    lambda play, c, r, rec: (
        f"engine saw {c['name']}: {get(rec.headers, c['name'])}" if get(rec.headers, c["name"]) else None
    )
)
CHECKS["engine_header_optional"] = per_rec(
    lambda play, c, r, rec: (
        f"{c['name']}: {get(rec.headers, c['name'])}"
        if get(rec.headers, c["name"]) not in ([], [c["equals"]])
        else None
    )
)
CHECKS["engine_header_not_contains"] = per_rec(
    lambda play, c, r, rec: (
        f"{c['name']}: {get(rec.headers, c['name'])}"
        if c["text"] in ",".join(get(rec.headers, c["name"])).lower()
        else None
    )
)
CHECKS["engine_header_regex"] = per_rec(
    lambda play, c, r, rec: (
        None
        if re.search(c["re"], (get(rec.headers, c["name"]) or [""])[0])
        else f"engine saw {c['name']}: {get(rec.headers, c['name'])}"
    )
)
CHECKS["engine_header_absent_or_handshaken"] = per_rec(
    lambda play, c, r, rec: (
        None
        if not get(rec.headers, c["name"]) or rec.handshaken and not rec.t_abort
        else "Expect forwarded without waiting"
    )
)
CHECKS["engine_framing"] = per_rec(
    lambda play, c, r, rec: None if rec.framing in c["one_of"] else f"framing {rec.framing}"
)
CHECKS["engine_not_both_framings"] = per_rec(
    lambda play, c, r, rec: "both framings upstream" if rec.framing == "both" else None
)
CHECKS["engine_path_equals_client_path"] = per_rec(
    lambda play, c, r, rec: None if rec.path == r.req["path"].split("?")[0] else f"{r.req['path']} became {rec.target}"
)
CHECKS["engine_target_equals_client_target"] = per_rec(
    lambda play, c, r, rec: None if rec.target == r.req["path"] else f"{r.req['path']} became {rec.target}"
)
CHECKS["engine_path"] = per_rec(
    lambda play, c, r, rec: (
        None if rec.path == c["equals"][r.variant - 1] else f"{r.req.get('worker_url')}: path {rec.path}"
    )
)
CHECKS["engine_request_not_contains"] = lambda play, c: [
    f"engine saw {c['text']!r} in {[k for k, v in r.headers if c['text'] in v] or 'body'}"
    for r in play.posts()
    if c["text"] in str(r.headers) or c["text"].encode() in r.body.data
][:1]
CHECKS["engine_never_sees"] = lambda play, c: [f"engine read {r.line!r}" for r in play.log if c["text"] in r.line]
CHECKS["never_reaches"] = lambda play, c: [
    f"engine read {r.line!r}" for r in play.log if r.client and r.method == "POST" and r.path == c["path"]
]
CHECKS["engine_log_all_have_header"] = lambda play, c: [
    f"{r.method} {r.path} had {c['name']}: {get(r.headers, c['name'])}"
    for r in play.log
    if get(r.headers, c["name"]) != [c["equals"]]
][:2]


def compare(n, c, what):
    ok = {"==": n == c["n"], "<=": n <= c["n"], ">=": n >= c["n"]}[c.get("cmp", "==")]
    return [] if ok else [f"{what}: {n}, not {c.get('cmp', '==')} {c['n']}"]


def answered(play, c):
    return sum(1 for r in play.select(c) for rec in r.recs if rec.engine.name == c["engine"] and rec.answered)


CHECKS["engine_inference_requests"] = lambda play, c: compare(len(play.posts()), c, "requests at engines")
CHECKS["engine_inference_requests_for"] = lambda play, c: compare(
    sum(r.engine.name == c["engine"] for r in play.posts()), c, f"requests at {c['engine']}"
)
CHECKS["engine_inference_requests_matching"] = lambda play, c: compare(
    sum(c["text"].encode() in r.body.data for r in play.posts()), c, f"requests with {c['text']}"
)
CHECKS["engine_count"] = lambda play, c: compare(answered(play, c), c, f"{c['engine']} answered")
CHECKS["engine_count_max"] = lambda play, c: compare(answered(play, c), {**c, "cmp": "<="}, f"{c['engine']} answered")
CHECKS["engine_count_min"] = lambda play, c: compare(answered(play, c), {**c, "cmp": ">="}, f"{c['engine']} answered")
CHECKS["sink_requests"] = lambda play, c: compare(
    sum(f.sink_hits for f in play.fleets), c, "requests at the redirect target"
)


@check("max_engine_accepts_per_request")
def _(play, c):
    worst = max((len(r.recs) for r in play.replies), default=0)
    return [f"a request was read {worst} times"] if worst > c["n"] else []


@check("engine_abort_within_ms_after_client_close", "engine_abort_within_ms")
@each
def _(play, c, r):
    rec = final(r)
    if rec is None:
        return "no engine saw it"
    start = r.t_close if r.t_close else r.t_start
    return late((rec.t_abort - start) * 1000 if rec.t_abort else None, c, play, "engine saw the socket close")
