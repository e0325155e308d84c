"""One case being played: its requests step by step, and all that was seen of them."""

import asyncio
import json
import os
import random
import re
import signal
import tempfile

import ramjet
from check import shares
from client import first, send
from client_h2 import send_h2
from engine import Fleet
from recipes import Filler, build, chat, dumps
from wire import connect, now

CHAT = {
    "method": "POST",
    "path": "/v1/chat/completions",
    "http": "1.1",
    "headers": {"content-type": "application/json"},
}
PATIENCE = 1.2  # seconds for what ramjet and engines do by themselves


async def until(condition, limit=PATIENCE):
    """Waits until `condition` holds, but no longer than `limit` seconds."""
    end = now() + limit
    while not condition() and now() < end:
        await asyncio.sleep(0.01)


class Skip(Exception):
    """The machine lacks what the case needs."""


class Play:
    """What was sent, what came back, what engines and ramjet show."""

    def __init__(self, case, setup, fix, binary, args):
        self.case, self.setup, self.fix, self.binary = case, setup, fix, binary
        self.slack, self.scale = args.slack, {} if args.full else setup.get("ci", {})
        self.timeout = setup.get("timeout", 30)
        self.replies, self.background, self.late, self.extra_replies, self.after = [], [], [], [], []
        self.fleets, self.launches, self.shown, self.metrics, self.jobs = [], [], [], ["", ""], []
        self.proc = self.alive = self.held = self.holding = self.drain = self.exit_after = self.direct_p99 = None
        self.logs, self.idle_rss, self.t_signal, self.hosts, self.last_step = "", 0, None, None, None

    @property
    def log(self):
        return [r for f in self.fleets for r in f.log]

    def posts(self):
        return [r for f in self.fleets for r in f.posts()]

    def select(self, c):
        """The answers that a check is about."""
        wanted = [(k, c[k]) for k in ("variant", "step") if k in c]
        return [r for r in self.replies if all(getattr(r, k) == v for k, v in wanted)]

    # engines and ramjet

    async def fleet(self):
        b = self.case["engine_behaviour"]
        if path := self.setup.get("drop_script"):
            b = {**b, "on_request": [e for e in b["on_request"] if e["match"].get("path") != path]}
        f = Fleet(b, self.setup.get("engine", {}), self.scale.get("scale", 1.0))
        await f.start()
        self.fleets.append(f)
        self.filler = Filler(f.engines[0].authority)
        return f

    def urls(self, fleet):
        if self.hosts:
            return [f"http://engine.test:{fleet.engines[0].port}"]
        return [f"http://{e.authority}" for e in fleet.engines]

    def spec(self, workers, **more):
        cfg = {**self.case["router_config"], **self.setup.get("config", {})}
        return ramjet.Spec(workers, cfg, debug=self.setup.get("debug", False), hosts=self.hosts, **more)

    async def start_ramjet(self, workers, **more):
        self.proc = ramjet.Process(self.binary, self.spec(workers, **more))
        await self.proc.spawn()
        ready = await self.proc.ready(alive=bool(workers))
        if ready is not None:
            await self.probed(workers or [])
        self.jobs.append(asyncio.ensure_future(self.proc.watch()))
        await until(lambda: self.proc.base or self.proc.rc is not None)
        return ready

    async def probed(self, workers):
        """Waits until ramjet has looked at each engine: one that listens has answered it, any other is fenced."""
        asked = [e for e in self.fleets[-1].engines if any(f":{e.port}" in url for url in workers)]
        silent = [e for e in asked if e.plug and not e.refuses()]  # what does not answer is not known so soon

        def has_answered(e):
            return any(r.engine is e and r.method == "GET" and not r.mark and r.t_done for r in self.log)

        end = now() + PATIENCE
        while now() < end and self.proc.rc is None:
            wrong = [e for e in asked if e.refuses() or e.state == "loading"]
            fenced = (await self.proc.get("/health")).text.count('"fenced"')
            if all(has_answered(e) for e in asked if e not in silent and e not in wrong) and fenced >= len(wrong):
                return
            await asyncio.sleep(0.02)

    async def stop_ramjet(self):
        if self.proc:
            self.logs += self.proc.log()
            await self.proc.stop()

    async def close(self):
        for j in self.jobs:
            j.cancel()
        await asyncio.gather(*self.jobs, return_exceptions=True)
        await self.stop_ramjet()
        for f in self.fleets:
            await f.stop()
        if self.hosts:
            os.unlink(self.hosts)

    # requests

    async def one(self, req, n=0, conv="", keep=None, into=None, **tags):
        """One request, on a kept connection of `keep` if that is a list; its answer goes to `into` or the replies."""
        req, body = build(req, self.filler, n, conv)
        if self.setup.get("watch_close"):
            req["watch_close"] = True
        fleet = self.fleets[-1]
        fleet.raw = fleet.raw or req["method"] == "RAW"
        if req["http"].startswith("2"):
            rs = await send_h2(req, body, self.proc.addr, req.get("parallel", 1))
        else:
            wire = None
            if keep is not None:
                wire = keep.pop() if keep else await connect(*self.proc.addr)
            r = await send(req, body, self.proc.addr, self.timeout, wire)
            closing = "close" in (first(r, "connection") or "").lower()
            if keep is not None and r.clean and not wire.gone.is_set() and not closing:
                keep.append(wire)
            elif wire:
                wire.close()
            rs = [r]
        for r in rs:
            r.step, r.variant = tags.get("step"), tags.get("variant")
            r.group = tags.get("group", conv or tags.get("variant"))
        (self.replies if into is None else into).extend(rs)
        return rs[0]

    def sized(self, what, i, otherwise):
        """A number of step `i`, as overrides or the smaller scale have it."""
        own = self.setup.get(what, {}).get(str(i))
        return own or self.scale.get(what, {}).get(str(i)) or otherwise

    async def many(self, step, i, into=None):
        """A `repeat` step, with `parallel` clients; all at once if it runs in the background."""
        req, n = step["request"], self.sized("repeat", i, step.get("repeat", 1))
        if "client_action" in step:
            req = {**req, "client_action": step["client_action"]}
        parallel = self.scale.get("parallel") or step.get("parallel", 1) if into is None else n
        gap = re.match(r"uniform\((\d+),(\d+)\)", str(step.get("gap_ms", "")))
        todo = iter(range(n))

        async def worker():
            keep = [] if n >= 200 and "client_action" not in req else None
            for k in todo:
                for conv in range(step.get("conversations", 1)):
                    name = f"c{conv}" if "conversations" in step else ""
                    q = other_conversation(req) if conv else req
                    await self.one(q, k, conv=name, keep=keep, into=into, step=i)
                if gap:
                    await asyncio.sleep(random.uniform(int(gap.group(1)), int(gap.group(2))) / 1000)
            for w in keep or []:
                w.close()

        await asyncio.gather(*(worker() for _ in range(min(n, parallel))))

    # steps

    async def steps(self, steps):
        for i, s in enumerate(steps, 1):
            if i in self.setup.get("drop_steps", []):
                continue
            if i in self.setup.get("probe_wait", []) and not isinstance(s["wait_ms"], int):
                s = {"wait_ms": 1000 * ramjet.probe_round(self.setup.get("config", {}))}
            if s.get("request") == "step 1":
                s = {**s, "request": self.case["request"]["steps"][0]["request"]}
            kinds = ("at_ms", "request", "background", "wait_ms", "engine_mode", "restart_engine", "engine_cmd", "dns")
            kinds += ("start_router", "signal", "wait_exit")
            await getattr(self, "on_" + next(k for k in kinds if k in s))(s, i)
            if "wait_ms" in s and any("background" in other for other in steps):
                await self.snapshot()

    async def on_at_ms(self, s, i):
        """A request at a time after the signal; GET asks for health."""
        await asyncio.sleep(max(0, self.t_signal + s["at_ms"] / 1000 - now()))
        if s["request"]["method"] == "GET":
            self.drain = await self.proc.get("/health")
        else:
            before = len(self.posts())
            job = asyncio.ensure_future(self.one(s["request"], step=i, into=self.late))
            self.jobs.append(job)
            await until(lambda: job.done() or len(self.posts()) > before)

    async def on_request(self, s, i):
        self.last_step = i
        if self.proc is None or self.proc.rc is not None:
            return
        await self.many(s, i)
        if r := next((r for r in self.replies if r.step == 1 and r.ok()), None):
            try:
                self.filler.ids.setdefault("id", json.loads(r.text)["id"])
            except (ValueError, KeyError, TypeError):
                pass

    async def on_background(self, s, i):
        before, n = len(self.posts()), self.sized("repeat", i, s["background"].get("repeat", 1))
        job = asyncio.ensure_future(self.many(s["background"], i, into=self.background))
        self.jobs.append(job)
        # all at the engines, as far as they get there
        await until(lambda: job.done() or len(self.posts()) >= before + n, 0.5)

    async def on_wait_ms(self, s, i):
        await asyncio.sleep(self.sized("waits", i, 0 if isinstance(s["wait_ms"], str) else s["wait_ms"]) / 1000)

    async def on_engine_mode(self, s, _):
        mode = self.setup.get("modes", {}).get(s["engine_mode"])
        self.fleets[-1].mode = mode or [{"op": "canned", "name": "ok_json"}]

    async def on_restart_engine(self, s, _):
        await self.fleets[-1][s["restart_engine"]].restart(0)

    async def on_engine_cmd(self, s, _):
        cmd, fleet = s["engine_cmd"], self.fleets[-1]
        if "load_adapter" in cmd:
            fleet[cmd["engine"]].models.append({"id": cmd["load_adapter"], "parent": "m1"})
        elif "mode" in cmd:
            fleet[cmd["engine"]].state = cmd["mode"]
        elif "stop" in cmd:
            await next(e for e in fleet.engines if e.host == cmd["stop"]).stop()
        elif "restart" in cmd:
            self.assign()
            s = shares(self, self.replies)
            engine = fleet[max(s, key=s.get)]
            self.jobs.append(asyncio.ensure_future(engine.restart(cmd["down_ms"])))
            await until(lambda: engine.server is None)

    async def on_dns(self, s, _):
        with open(self.hosts, "w") as f:
            f.write("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for n, a in s["dns"].items()))
        if self.proc is None:
            await self.start_ramjet(self.urls(self.fleets[-1]))

    async def on_start_router(self, s, i):
        await self.stop_ramjet()
        fleet = self.fleets[-1]
        workers = [f"http://{fleet[w].authority}" if w in ("E1", "E2") else w for w in s["start_router"]["workers"]]
        ready = await self.start_ramjet(workers)
        launch = {"label": f"step {i}", "workers": workers, "ready": ready, "rc": self.proc.rc, "log": self.proc.log()}
        self.launches.append(launch)

    async def on_signal(self, s, _):
        self.t_signal = now()
        self.proc.proc.send_signal(getattr(signal, s["signal"]))

    async def on_wait_exit(self, _s, _i):
        try:
            await asyncio.wait_for(self.proc.proc.wait(), 60)
            t_exit = now()
        except asyncio.TimeoutError:
            t_exit = None
        await asyncio.gather(*self.jobs[1:], return_exceptions=True)
        ends = [r.t_end for r in self.background + self.late if r.t_end]
        self.exit_after = t_exit - max(ends) if t_exit and ends else None

    async def snapshot(self):
        """What engines hold now, and what ramjet believes."""
        running = [r for r in self.log if r.client and r.t_done is None and r.t_abort is None]
        self.holding = {e.name: sum(r.engine is e for r in running) for e in self.fleets[-1].engines}
        self.held = (self.holding, await self.proc.inflight())

    # variants

    async def variants(self, variants):
        out = []
        for v in variants:
            sizes = re.match(r"N = (.*)", v.get("body_recipe", ""))
            out += [{**v, "size": int(n)} for n in sizes.group(1).split(",")] if sizes else [v]
        if self.setup.get("parallel_variants"):

            async def later(i, v):
                await until(lambda: len(self.posts()) >= i)  # one after the other, so that none takes another's place
                await self.one(v, variant=i + 1)

            await asyncio.gather(*(later(i, v) for i, v in enumerate(out)))
            return
        same = any(c["t"] == "next_request_on_same_connection_ok" for c in self.case["expect"]["checks"])
        for i, v in enumerate(out, 1):
            if "worker_url" in v:
                await self.own_ramjet(v, i)
                continue
            keep = [] if same else None
            r = await self.one(v, variant=i, keep=keep)
            if keep and r.status:
                self.after.append((r, await send(CHAT, dumps(chat("after")), self.proc.addr, 5, keep[0])))
                keep[0].close()
            elif not same and v["method"] == "RAW":
                self.after.append((r, await send(CHAT, dumps(chat("after")), self.proc.addr, 5)))

    async def own_ramjet(self, v, i):
        """A variant with a worker URL of its own: a new ramjet for it."""
        await self.stop_ramjet()
        e = (await self.fleet()).engines[0]
        url = v["worker_url"].replace("E1", e.authority).replace(":8001", f":{e.port}")
        host = re.match(r"\[(.*)\]:", v["listen"]).group(1) if "listen" in v else "127.0.0.1"
        await self.start_ramjet([url], host=host)
        if self.proc.rc not in (None, 0) and re.search(r"/v1|path|url", self.proc.log(), re.I) and "listen" not in v:
            return  # refused with a message: allowed by the case
        await self.one(v, variant=i)
        self.shown.append(await self.proc.metrics())
        self.assign()

    def assign(self):
        """Connects answers with what engines saw: by our mark; bytes made by hand have none, so by time."""
        marked = {}
        for rec in self.log:
            if rec.mark and rec.client:
                marked.setdefault(rec.mark, []).append(rec)
        free = [r for r in self.log if not r.mark and r.client and r.method != "GET"]
        for r in self.replies + self.background:
            r.recs = marked.get(r.mark, [])
            if r.mark is None and r.t_start:
                r.recs = [x for x in free if r.t_start <= x.t_head <= (r.t_end or now())][:2]

    def private_hosts(self):
        """Makes a file that only this ramjet takes for /etc/hosts."""
        if os.system("unshare -m true 2>/dev/null"):
            raise Skip("needs a mount namespace (unshare -m)")
        fd, self.hosts = tempfile.mkstemp(prefix="ramjet-case-hosts-")
        os.close(fd)


def other_conversation(req):
    """The same request with other fixed texts."""
    text = json.dumps(req)
    for a, b in (
        ("<SYS: fixed", "<SYS2"),
        ("<SYS2 12000-character system text, same for all requests of the case>", "<SYS2>"),
        ("session_S1", "session_S2"),
    ):
        text = text.replace(a, b)
    return json.loads(text)
