"""Scripted engines on raw sockets: exact bytes and timing as a case says."""

import asyncio
import json
import socket

from answers import Out, error_json
from wire import Body, Gone, Wire, get, now, parse_head, read_body

MARK = "x-case-id"


class Rec:
    """What one engine saw of one request and what it answered."""

    def __init__(self, engine, line, headers, conn):
        self.engine, self.line, self.headers, self.conn = engine, line, headers, conn
        parts = line.split(" ")
        self.method, self.target, self.http = parts[0], parts[1] if len(parts) > 1 else "", parts[-1]
        self.path = self.target.split("?")[0]
        self.body, self.framing, self.trailers = Body(), "none", []
        self.t_head, self.t_done, self.t_abort, self.t_head_out = now(), None, None, None
        self.out, self.writes = Body(), []  # body bytes written; (time, total) after each write
        self.status, self.out_headers, self.answered, self.client = None, [], False, False
        self.handshaken = False
        self.mark = (get(headers, MARK) or [None])[0]

    def json(self):
        try:
            return json.loads(bytes(self.body.data))
        except ValueError:
            return None


class Engine:
    def __init__(self, fleet, spec):
        self.fleet, self.name, self.spec = fleet, spec["name"], spec
        self.models = [m if isinstance(m, dict) else {"id": m} for m in spec.get("models", [])]
        self.host = spec.get("addr") or ("::1" if fleet.opt.get("ipv6") else "127.0.0.1")
        self.state = "loading" if fleet.uses_loading(self.name) else "ready"
        self.server, self.wires, self.ids, self.busy = (
            None,
            set(),
            set(),
            asyncio.Semaphore(fleet.opt.get("max_parallel", 10**6)),
        )
        self.plug = []

    async def start(self, port=0):
        how = self.spec.get("port", "")
        sock = socket.socket(socket.AF_INET6 if ":" in self.host else socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((self.host, port))
        self.port = sock.getsockname()[1]
        if "closed" in how:  # bound, never listening: a SYN is answered by RST
            self.plug = [sock]
        elif "drop SYN" in how:  # a full accept queue: further SYNs are dropped
            sock.listen(0)
            self.plug = [sock]
            for _ in range(3):
                c = socket.socket()
                c.setblocking(False)
                c.connect_ex((self.host, self.port))
                self.plug.append(c)
        else:
            sock.listen(1024)
            loop = asyncio.get_running_loop()
            self.server = await loop.create_server(lambda: Wire(self.accept), sock=sock)
        h = f"[{self.host}]" if ":" in self.host else self.host
        self.authority = f"{h}:{self.port}"

    def refuses(self):
        """Whether nobody listens at its port."""
        return "closed" in self.spec.get("port", "")

    def accept(self, wire):
        self.wires.add(wire)
        task = asyncio.get_running_loop().create_task(self.serve(wire))
        self.fleet.tasks.add(task)
        task.add_done_callback(self.fleet.tasks.discard)

    async def stop(self):
        if self.server:
            self.server.close()
            self.server = None
        for wire in list(self.wires):
            wire.rst()
        for sock in self.plug:
            sock.close()
        self.plug = []

    async def restart(self, down_ms):
        await self.stop()
        self.ids.clear()
        hold = socket.socket()  # keep the port ours, refusing connections
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hold.bind((self.host, self.port))
        await asyncio.sleep(down_ms / 1000)
        hold.close()
        await self.start(self.port)

    async def serve(self, wire):
        idle = self.fleet.opt.get("idle_close_ms", 5000) / 1000
        try:
            while True:
                if not wire.buf:
                    await wire.more(idle)
                line, headers = parse_head(await wire.until(b"\r\n\r\n", 30))
                if line.startswith("PRI "):  # HTTP/2 tried on us: hang up as uvicorn does
                    break
                rec = Rec(self, line, headers, id(wire))
                self.fleet.log.append(rec)
                try:
                    keep = await self.handle(wire, rec)
                except (Gone, ValueError):
                    rec.t_abort = wire.t_gone or now()
                    break
                rec.t_done = now()
                if not keep:
                    break
        except (Gone, asyncio.TimeoutError, OSError):
            pass
        finally:
            self.wires.discard(wire)
            if wire.t_lost is None:
                wire.close()

    async def handle(self, wire, rec):
        if any("100-continue" in v.lower() for v in get(rec.headers, "expect")):
            rec.handshaken = True
            await wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        rec.framing, rec.trailers = await read_body(wire, rec.headers, False, rec.body.add)
        rec.client = self.fleet.is_client(rec)
        play = asyncio.ensure_future(self.answer(wire, rec))
        gone = asyncio.ensure_future(wire.gone.wait())
        try:
            await asyncio.wait({play, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not play.done():
                raise Gone
            return play.result()
        finally:
            play.cancel()
            gone.cancel()

    # answering
    async def answer(self, wire, rec):
        opt, auth = self.fleet.opt, get(rec.headers, "authorization")
        out = Out(self, wire, rec)
        if opt.get("key") and auth != [f"Bearer {opt['key']}"] and (opt.get("key_everywhere") or rec.method == "POST"):
            return await out.json(401, {"error": {"message": "Unauthorized", "type": "auth", "code": 401}})
        if opt.get("reject_upgrade") and get(rec.headers, "upgrade"):
            return await out.json(400, error_json(rec.path, 400, "Field required"))
        if opt.get("check_host") and get(rec.headers, "host") != [self.authority]:
            return await out.json(421, error_json(rec.path, 421, "Misdirected"))
        if opt.get("exact_paths") and rec.method == "POST" and rec.path not in opt["exact_paths"]:
            return await out.json(404, error_json(rec.path, 404, "Not Found"))
        if opt.get("cors") and rec.method == "OPTIONS":
            asked = get(rec.headers, "access-control-request-headers")
            return await out.run(
                [
                    {
                        "op": "head",
                        "status": 200,
                        "headers": {
                            "access-control-allow-origin": "https://app.test",
                            "access-control-allow-methods": "GET, POST, OPTIONS",
                            "access-control-allow-headers": asked[0] if asked else "*",
                            "vary": "Origin",
                            "content-length": "2",
                            "content-type": "text/plain",
                        },
                    },
                    {"op": "write", "text": "OK"},
                    {"op": "end"},
                ]
            )
        script = self.fleet.script_for(self, rec)
        if script is None:
            return await self.builtin(out, rec)
        async with self.busy:
            return await out.run(script)

    async def builtin(self, out, rec):
        path = rec.path.removeprefix(self.fleet.opt.get("prefix", ""))
        if rec.method in ("GET", "HEAD"):
            if (slow := self.fleet.opt.get("slow_probes_once_busy_ms")) and self.fleet.nth:
                await asyncio.sleep(slow / 1000)
            if path in ("/health", "/health_generate", "/ping", "/v1/health/ready"):
                return await out.json(200, {"status": "ok"})
            if path == "/v1/models":
                await asyncio.sleep(self.spec.get("models_delay_ms", 0) / 1000)
                return await out.json(
                    200,
                    {
                        "object": "list",
                        "data": [dict({"object": "model", "owned_by": "case"}, **m) for m in self.models],
                    },
                )
            first = self.models[0]["id"] if self.models else "m1"
            if path == "/version":
                return await out.json(200, {"version": "0.11.0"})
            if path in ("/get_model_info", "/model_info"):
                return await out.json(200, {"model_path": first, "tokenizer_path": first, "is_generation": True})
            if path in ("/get_server_info", "/server_info"):
                return await out.json(
                    200, {"model_path": first, "served_model_name": first, "version": "0.5.0", "dp_size": 1}
                )
            if path == "/metrics":
                return await out.run(
                    [
                        {"op": "head", "status": 200, "headers": {"content-type": "text/plain", "content-length": "0"}},
                        {"op": "end"},
                    ]
                )
            return await out.json(404, error_json(path, 404, "Not Found"))
        if rec.method == "POST" and not rec.client:
            return await out.canned("ok_json")  # a probe of ramjet's own
        return await out.json(404, error_json(path, 404, "Not Found"))


class Fleet:
    """All engines of a case, their shared script and log."""

    def __init__(self, behaviour, opt, scale=1.0):
        self.on, self.opt, self.scale = behaviour["on_request"], opt, scale
        self.log, self.tasks, self.nth, self.mode = [], set(), 0, None
        self.sink, self.sink_hits, self._sink = "127.0.0.1:9", 0, None
        self.raw = False  # a client sends bytes made by hand
        self.engines = [Engine(self, spec) for spec in behaviour["fleet"]]

    def uses_loading(self, name):
        return any(e["match"].get("engine") == name and e["match"].get("state") == "loading" for e in self.on)

    async def start(self):
        def hit(wire):
            self.sink_hits += 1
            wire.close()

        self._sink = await asyncio.get_running_loop().create_server(lambda: Wire(hit), "127.0.0.1", 0)
        self.sink = "127.0.0.1:%d" % self._sink.sockets[0].getsockname()[1]
        port = 0
        for e in self.engines:
            await e.start(port if self.opt.get("same_port") else 0)
            port = e.port

    async def stop(self):
        self._sink.close()
        for e in self.engines:
            await e.stop()
        for t in list(self.tasks):
            t.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def __getitem__(self, name):
        return next(e for e in self.engines if e.name == name)

    def is_client(self, rec):
        """Client traffic, as opposed to a probe of ramjet's own."""
        if rec.mark:
            return True
        if self.raw:  # bytes made by hand carry no mark; a probe always limits its tokens
            return b"max_" not in rec.body.data
        return rec.method != "POST" or rec.json() is None

    def script_for(self, engine, rec):
        inference = (rec.method == "POST" and (rec.client or self.opt.get("probes_follow_script"))) or any(
            v.lower() == "websocket" for v in get(rec.headers, "upgrade")
        )
        if rec.client and inference:
            self.nth += 1
        if self.mode and inference:
            return self.mode
        for e in self.on:
            m = e["match"]
            ok = (
                m.get("engine") in (None, engine.name)
                and m.get("state") in (None, engine.state)
                and m.get("nth") in (None, self.nth)
                and (m.get("nth") is None or inference)
                and ("body_has" not in m or (inference and m["body_has"].encode() in rec.body.data))
            )
            path = m.get("path")
            if path == "*inference*":
                state = str(e["do"][0].get("name", "")).startswith("stateful_") and rec.path.startswith(
                    ("/v1/files", "/v1/responses")
                )
                ok = ok and (inference or state)
            elif path:
                ok = ok and rec.path == path
            if ok:
                return e["do"]
        return None

    def posts(self):
        return [r for r in self.log if r.client and r.method == "POST"]
