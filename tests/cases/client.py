"""The client: HTTP/1.0 and 1.1 on raw sockets, WebSocket, and all the ways to leave."""

import asyncio
import itertools
import os
import re

from engine import MARK
from frames import ws_frame, ws_read
from wire import Body, Gone, connect, get, now, parse_head, read_body

serial = itertools.count(1)


class Reply:
    """One request as sent and all that came back."""

    def __init__(self, req, body):
        self.req, self.sent, self.body = req, Body.of(body), Body()
        self.mark = f"j{next(serial)}"
        self.status, self.headers, self.reads, self.interim = None, [], [], []
        self.t_start = self.t_head = self.t_end = self.t_close = None
        self.framing, self.clean, self.error, self.closed, self.raw_head, self.extra = None, False, "", False, b"", {}
        self.step = self.variant = self.group = None
        self.recs = []  # what engines saw of it

    def add(self, part):
        self.body.add(part)
        self.reads.append((now(), self.body.n))

    def t_at(self, offset):
        """When body byte number `offset` had arrived."""
        return next((t for t, n in self.reads if n >= offset), None)

    @property
    def text(self):
        return bytes(self.body.data).decode("utf-8", "replace")

    @property
    def ms(self):
        return ((self.t_end or now()) - self.t_start) * 1000

    def ok(self):
        return self.status is not None and 200 <= self.status < 300 and self.clean


def head_bytes(req, body, host, mark):
    """Request line and headers as the case wants them, plus Host, Content-Length and our mark where not given."""
    headers = [(k, x) for k, v in req["headers"].items() for x in (v if isinstance(v, list) else [v])]
    names = {k.lower() for k, _ in headers}
    if "host" not in names:
        headers.insert(0, ("Host", host))
    if body and not names & {"content-length", "transfer-encoding"}:
        headers.append(("Content-Length", str(len(body))))
    headers.append((MARK, mark))
    lines = "".join(f"{k}: {v}\r\n" for k, v in headers)
    return f"{req['method']} {req['path']} HTTP/{req['http']}\r\n{lines}\r\n".encode("utf-8"), names


async def upload(wire, req, body, chunked):
    """Sends the body; the server may answer or hang up before the end."""
    try:
        if not chunked:
            for i in range(0, len(body), 1 << 18):
                await wire.send(body[i : i + (1 << 18)])
            return
        sizes, i = itertools.cycle(req.get("chunks") or [1 << 16]), 0
        while i < len(body):
            part = body[i : i + next(sizes)]
            i += len(part)
            await wire.send(b"%x%b\r\n%b\r\n" % (len(part), req.get("chunk_ext", "").encode(), part))
        await wire.send(
            b"0\r\n" + "".join(f"{k}: {v}\r\n" for k, v in req.get("trailers", {}).items()).encode() + b"\r\n"
        )
    except Gone:
        pass


async def read_reply(wire, r, method, until_text=None, events=None):
    """Reads interim and final heads and the body. Stops early at a text or after a number of events."""
    while True:
        raw = await wire.until(b"\r\n\r\n")
        line, headers = parse_head(raw)
        r.raw_head += raw
        m = re.match(r"HTTP/1\.[01] (\d{3})", line)
        if not m:
            raise ValueError(f"not a status line: {line[:80]!r}")
        if int(m.group(1)) // 100 == 1 and m.group(1) != "101":
            r.interim.append((now(), int(m.group(1))))
            continue
        break
    r.status, r.headers, r.t_head = int(m.group(1)), headers, now()
    if r.status == 101 or method == "HEAD" or r.status in (204, 304):
        r.clean, r.framing = True, "none"
        return

    class Enough(Exception):
        pass

    def sink(part):
        r.add(part)
        if until_text and until_text.encode() in r.body.data or events and r.body.data.count(b"\n\n") >= events:
            raise Enough

    try:
        r.framing, _ = await read_body(wire, headers, True, sink)
        r.clean = True
    except Enough:
        r.framing = "left"


async def send(req, body, addr, timeout=30, wire=None):
    """Plays one request; never raises for what the router does."""
    r, action = Reply(req, body), req.get("client_action", "")
    host = f"[{addr[0]}]" if ":" in addr[0] else addr[0]
    r.t_start = now()
    own = wire is None
    jobs = []
    try:
        wire = wire or await connect(*addr)
        if req["method"] == "RAW":
            r.mark = None
            await wire.send(req["raw"].encode("latin-1").decode("unicode_escape").encode("latin-1"))
        else:
            head, names = head_bytes(req, body, f"{host}:{addr[1]}", r.mark)
            chunked = "transfer-encoding" in names
            await wire.send(head)
            if "expect" in names:
                jobs.append(asyncio.ensure_future(read_reply(wire, r, req["method"])))
                end = now() + 5
                while not r.interim and not jobs[0].done() and now() < end:
                    await asyncio.sleep(0.005)
                if r.interim:
                    await upload(wire, req, body, chunked)
                elif not jobs[0].done():
                    r.error = "no 100 within 5 s"
                await asyncio.wait_for(jobs[0], 0.2 if r.error else timeout)
            else:
                jobs.append(asyncio.ensure_future(upload(wire, req, body, chunked)))
                if len(body) < 65536 or action.startswith("close"):
                    await asyncio.wait_for(jobs[0], timeout)
        if m := re.search(r"close.* (\d+) ms after", action):
            await asyncio.sleep(int(m.group(1)) / 1000)
            r.t_close = now()
            r.error = "client left"
            return r
        if action.startswith("read nothing"):
            wire.tr.pause_reading()
            await asyncio.sleep(10)
            wire.tr.resume_reading()
        text, events = (
            (re.search(r"after text (.+)", action) or [None, None])[1],
            3 if action.startswith("RST after 3rd") else None,
        )
        if not jobs or "expect" not in names:
            await asyncio.wait_for(read_reply(wire, r, req["method"], text, events), timeout)
        if events or text:
            r.t_close = now()
            wire.rst() if events else wire.close()
        elif r.status == 101:
            await websocket(wire, r)
    except asyncio.TimeoutError:
        r.error = r.error or f"nothing more within {timeout} s"
    except Gone:
        r.error = r.error or ("connection reset" if wire.reset else "connection closed early")
    except (OSError, ValueError) as e:
        r.error = r.error or f"{type(e).__name__}: {e}"
    finally:
        r.t_end = now()
        for j in jobs:
            j.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        if wire is not None and (own or r.error):
            if req.get("watch_close") and r.status and not wire.gone.is_set():
                try:
                    await asyncio.wait_for(wire.gone.wait(), 1.5)
                except asyncio.TimeoutError:
                    pass
            r.closed, r.extra["after"] = wire.gone.is_set(), bytes(wire.buf)
            wire.close()
    return r


async def websocket(wire, r):
    r.extra["ws"] = "no echo"
    for op, data in ((1, b"hello"), (2, os.urandom(70 << 10)), (9, b"ping")):
        await wire.send(ws_frame(op, data, os.urandom(4)))
        got = await ws_read(wire, 5)
        if got != ({9: 10}.get(op, op), data):
            r.extra["ws"] = f"frame op {op}, {len(data)} bytes came back as op {got[0]}, {len(got[1])} bytes"
            return
    await wire.send(ws_frame(8, b"\x03\xe8", os.urandom(4)))
    r.extra["ws"] = "ok" if (await ws_read(wire, 5))[0] == 8 else "close not echoed"


def first(r, name):
    return (get(r.headers, name) or [None])[0]
