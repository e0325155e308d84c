"""Checks of what the client got: bodies, framing, headers, errors."""

import json
import re
import zlib

from check import CHECKS, check, each, final, parsed, short, who
from client import first
from recipes import loads
from wire import get

# bodies and framing


@check("client_body_equals_engine_body", "client_raw_bytes_equal_engine_bytes")
@each
def _(play, c, r):
    rec = final(r)
    if rec is None:
        return f"no engine saw it (status {r.status}, {r.error})"
    if not r.clean and rec.answered:
        return f"answer not complete: {r.error or r.framing}, {r.body.n} of {rec.out.n} bytes"
    if not r.body.same(rec.out):
        if c.get("anthropic_reshape_ok") and r.req["path"].startswith("/v1/messages") and r.status >= 400:
            j, words = parsed(r.text), parsed(bytes(rec.out.data)) or {}
            if (
                isinstance(j, dict)
                and j.get("type") == "error"
                and str(words.get("detail") or words.get("error", {}).get("message")) in r.text
            ):
                return None
        a, b = bytes(rec.out.data), bytes(r.body.data)
        i = next((i for i, (p, q) in enumerate(zip(a, b)) if p != q), min(len(a), len(b)))
        sizes = f"{rec.out.n}/{r.body.n}"
        return f"differs at byte {i} of {sizes}: engine {short(a[i : i + 40])} client {short(b[i : i + 40])}"


@check("body_equals_engine_first_step")
def _(play, c):
    return CHECKS["client_body_equals_engine_body"](play, {**c, "step": 1})


CHECKS["client_body_has"] = each(
    lambda play, c, r: None if c["text"] in r.text else f"{c['text']!r} not in body {short(r.text)}"
)
CHECKS["client_body_not_contains"] = each(
    lambda play, c, r: (
        f"body has {c['text']!r}: {short(r.text[max(0, r.text.find(c['text']) - 60) :], 140)}"
        if c["text"] in r.text
        else None
    )
)
CHECKS["client_body_not_contains_hex"] = each(
    lambda play, c, r: f"body has bytes {c['hex']}" if bytes.fromhex(c["hex"]) in r.body.data else None
)
CHECKS["client_bytes_at_least"] = each(lambda play, c, r: None if r.body.n >= c["n"] else f"{r.body.n} bytes")
CHECKS["client_clean_eof"] = each(
    lambda play, c, r: None if r.clean else f"did not end properly: {r.error or r.framing}"
)
CHECKS["not_clean_200_with_short_body"] = each(
    lambda play, c, r: (
        f"clean 200 with {r.body.n} bytes ({r.framing})"
        if r.status == 200 and r.clean and final(r) and not final(r).answered
        else None
    )
)
CHECKS["head_has_no_body"] = each(
    lambda play, c, r: (
        f"bytes after HEAD: {short(r.extra.get('after'))}"
        if r.req["method"] == "HEAD" and r.extra.get("after")
        else None
    )
)
CHECKS["client_not_both_framings"] = each(
    lambda play, c, r: (
        "Content-Length and Transfer-Encoding"
        if get(r.headers, "content-length") and get(r.headers, "transfer-encoding")
        else None
    )
)
CHECKS["no_auth_needed"] = each(lambda play, c, r: f"status {r.status}" if r.status in (401, 403) else None)
CHECKS["no_status"] = each(
    lambda play, c, r: f"{r.req['method']} {r.req['path']}: status {r.status}" if r.status in c["status"] else None
)
CHECKS["client_connection_closed_after_response"] = each(
    lambda play, c, r: None if r.closed or not r.status else "connection left open"
)
CHECKS["websocket_echo_ok_if_101"] = each(
    lambda play, c, r: f"echo: {r.extra.get('ws')}" if r.status == 101 and r.extra.get("ws") != "ok" else None
)


@check("client_can_decode_body")
@each
def _(play, c, r):
    coding, data = first(r, "content-encoding"), bytes(r.body.data)
    try:
        text = zlib.decompress(data, 47) if coding == "gzip" else data
        loads(text)
    except (ValueError, zlib.error) as e:
        return f"content-encoding {coding}, body {short(data[:40])}: {e}"


@check("no_line_starts_data_and_contains")
@each
def _(play, c, r):
    sent = bytes(final(r).out.data).decode("utf-8", "replace") if final(r) else ""
    extra = r.text[len(sent) :] if r.text.startswith(sent) else r.text
    if extra and not sent.endswith("\n") and c["text"] in extra.split("\n")[0]:
        return f"router text glued to a half line: {short(extra)}"
    bad = [line for line in extra.split("\n") if line.strip().startswith("{")]
    return f"JSON without data: {short(bad[0])}" if bad else None


# headers


def header_value(c, r):
    want = c["equals"]
    rec = final(r)
    if want in ("<as engine>", "<as sent by engine>"):
        return [dict(rec.out_headers).get(c["name"])] if rec else [None]
    if want == "<as sent by engine, without its own address>":
        sent = dict(rec.out_headers).get(c["name"]) or "" if rec else ""
        return [sent.removeprefix(f"http://{rec.engine.authority}") if rec else None]
    return want if isinstance(want, list) else [want]


@check("client_header")
@each
def _(play, c, r):
    got = get(r.headers, c["name"])
    return (
        None
        if (got or [None])[0] in header_value(c, r) and len(got) < 2
        else f"{c['name']} is {got}, not {header_value(c, r)} (status {r.status})"
    )


CHECKS["client_header_first_step"] = lambda play, c: CHECKS["client_header"](play, {**c, "step": 1})
CHECKS["client_header_if_101"] = each(
    lambda play, c, r: (
        f"{c['name']} is {first(r, c['name'])}" if r.status == 101 and first(r, c["name"]) != c["equals"] else None
    )
)
CHECKS["client_header_absent"] = each(
    lambda play, c, r: f"{c['name']}: {first(r, c['name'])}" if get(r.headers, c["name"]) else None
)
CHECKS["client_header_contains"] = each(
    lambda play, c, r: (
        None
        if c["text"].lower() in ",".join(get(r.headers, c["name"])).lower()
        else f"{c['name']} is {get(r.headers, c['name'])}"
    )
)
CHECKS["client_header_count"] = each(
    lambda play, c, r: (
        None
        if c.get("min", 0) <= len(get(r.headers, c["name"])) <= c["max"]
        else f"{len(get(r.headers, c['name']))} lines of {c['name']}"
    )
)


@check("also_on_error_responses")
def _(play, c):
    return [
        f"{r.req['path']}: {r.status} has {len(get(r.headers, 'access-control-allow-origin'))} lines of allow-origin"
        for r in play.extra_replies
        if r.status and len(get(r.headers, "access-control-allow-origin")) != 1
    ]


def error_problem(r):
    if r.req["method"] == "HEAD":
        return None
    rec = final(r)
    if rec and rec.status == r.status and rec.out.n and r.body.same(rec.out):
        return None  # the engine's own error, unchanged
    try:
        j = json.loads(r.text)
        msg = j["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"status {r.status}: no JSON error.message: {short(r.text) or '(empty body)'} {r.error}"
    if r.req["path"].startswith("/v1/messages") and j.get("type") != "error":
        return f"not Anthropic's shape: {short(r.text)}"
    return None if isinstance(msg, str) else f"error.message is {msg!r}"


CHECKS["client_json_error_object"] = each(lambda play, c, r: error_problem(r))
CHECKS["client_json_error_object_if_4xx"] = each(
    lambda play, c, r: error_problem(r) if r.status and 400 <= r.status < 500 else None
)
CHECKS["if_400_json_error"] = each(lambda play, c, r: error_problem(r) if r.status == 400 else None)


@check("consistent")
def _(play, c):
    kinds = {r.status for r in play.replies if r.req["path"] != "/v1/files/"}
    return [] if kinds == {200} or len(kinds) == 1 and kinds <= {404, 501} else [f"statuses {sorted(map(str, kinds))}"]


@check("json_path")
@each
def _(play, c, r):
    try:
        j = json.loads(zlib.decompress(bytes(r.body.data), 47) if first(r, "content-encoding") == "gzip" else r.text)
        if m := re.fullmatch(r"data\[(\*|\?id=(\w+))\]\.(\w+)", c["path"]):
            got = [d.get(m.group(3)) for d in j["data"] if not m.group(2) or d["id"] == m.group(2)]
        else:
            got = [j]
            for key in c["path"].split("."):
                got = [got[0][key]]
    except (ValueError, KeyError, TypeError, zlib.error) as e:
        return f"no {c['path']}: {type(e).__name__}: {short(r.text)}"
    if "contains" in c:
        return None if c["contains"] in got else f"{c['path']} is {got}"
    if "equals_set" in c:
        return None if sorted(map(str, got)) == sorted(c["equals_set"]) else f"{c['path']} is {got}"
    return None if got == [c["equals"]] else f"{c['path']} is {got}"


# brought by overrides.json


@check("refused_or_passed_through")
def _(play, c):
    out = []
    for r in play.replies:
        rec = final(r)
        same = (
            rec
            and rec.body.same(r.sent)
            and get(rec.headers, "content-encoding") == [r.req["headers"]["content-encoding"]]
        )
        if rec is None and r.status not in c["status"]:
            out.append(f"{who(r)}status {r.status} {r.error}, not {c['status']}")
        elif rec is None and error_problem(r):
            out.append(who(r) + error_problem(r))
        elif rec is not None and not (same and r.status == rec.status):
            coding, sizes = get(rec.headers, "content-encoding"), f"{rec.body.n} of {r.sent.n} bytes"
            out.append(f"{who(r)}altered (coding {coding}, {sizes}) or status {r.status} is not the engine's")
    return out


@check("refused_or_one_clean_request")
def _(play, c):
    return [
        f"{who(r)}status {r.status or r.error}"
        for r in play.replies
        if r.status not in (400, 422, 501) and not (r.status == 200 and len(r.recs) <= 1)
    ]
