"""One case from its start to its verdict."""

import asyncio
import json
import statistics

import launch
from check import short
from client import send
from play import CHAT, Play, Skip
from recipes import build, chat, dumps
from verdict import dump, judge
from wire import now

ABORT_SECONDS = 1.6  # how long an engine's end of a connection is watched after the client has left


def prepared(case, setup, fix):
    """The case with what `overrides.json` says of its requests."""
    for a, b in fix.get("substitute", []):
        case = json.loads(json.dumps(case).replace(a, b))
    request = {**case["request"], **setup.get("request", {})}
    if "steps" in setup:
        request["steps"] = setup["steps"]
    return {**case, "request": request}


async def conduct(case, overrides, binary, args):
    """(verdict, reasons, seconds) of a case."""
    start, name = now(), case["id"]
    setup, fix = overrides["setup"].get(name, {}), overrides["corrections"].get(name, {})
    play = Play(prepared(case, setup, fix), setup, fix, binary, args)
    try:
        if play.case["request"]["kind"] == "launch":
            await launch.launches(play)
        else:
            await open_stage(play)
            await requests(play)
            await close_stage(play)
        problems, notes = await judge(play)
        return "FAIL" if problems else "PASS", problems or notes, now() - start
    except Skip as e:
        return "SKIP", [str(e)], now() - start
    except NotReady as e:
        return "FAIL", [str(e)], now() - start
    finally:
        if args.keep_bytes:
            dump(play, args.keep_bytes)
        await play.close()


class NotReady(Exception):
    """ramjet did not start."""


async def open_stage(play):
    """Engines, and ramjet in front of them unless the case starts it itself."""
    req = play.case["request"]
    if any("dns" in s for s in req.get("steps", [])):
        play.private_hosts()
    if any("worker_url" in v for v in req.get("variants", [])):
        return
    fleet = await play.fleet()
    if not play.hosts and not any("start_router" in s for s in req.get("steps", [])):
        if await play.start_ramjet(play.urls(fleet)) is None:
            raise NotReady(f"ramjet did not start (exit {play.proc.rc}): {short(play.proc.log()[-300:], 300)}")
        for s in req["steps"] if play.setup.get("warm") else []:
            await play.one(s["request"], into=[])
        play.metrics[0] = await play.proc.metrics()
    if play.setup.get("calibrate"):
        await calibrate(play)


async def requests(play):
    req = play.case["request"]
    if req["kind"] == "single":
        await play.one(req)
    elif req["kind"] == "variants":
        await play.variants(req["variants"])
    elif req["kind"] == "sequences":
        for i, v in enumerate(req["variants"], 1):
            before = len(play.replies)
            await play.steps(v["steps"])
            for r in play.replies[before:]:
                r.group = r.variant = i
    else:
        await play.steps(req["steps"])


async def close_stage(play):
    """Waits for what engines see late, asks a few last things, and connects answers with requests at engines."""
    await asyncio.sleep(0.15)
    for r in [r for r in play.replies if r.t_close]:
        end = now() + ABORT_SECONDS * play.slack
        play.assign()
        while r.recs and r.recs[-1].t_abort is None and now() < end:
            await asyncio.sleep(0.05)
        if now() - r.t_close > 2 * ABORT_SECONDS:
            break
    play.assign()
    if play.proc and play.proc.rc is None:
        await last_questions(play)
    play.logs += play.proc.log() if play.proc else ""


async def last_questions(play):
    addr = play.proc.addr
    if any(c["t"] == "router_alive" for c in play.case["expect"]["checks"]):
        play.alive = await send(CHAT, dumps(chat("still there?")), addr, 5)
    for method, path in play.setup.get("extra", []):
        headers = {**CHAT["headers"], "origin": "https://app.test"}
        body = dumps(chat("again")) if method == "POST" else b""
        request = {**CHAT, "method": method, "path": path, "headers": headers}
        play.extra_replies.append(await send(request, body, addr, 5))
    play.metrics[1] = await play.proc.metrics()
    if "idle_s" in play.setup:
        await asyncio.sleep(play.scale.get("idle_s", play.setup["idle_s"]))
        play.idle_rss = play.proc.rss()


async def calibrate(play):
    """This program's own share of latency: the same load without ramjet."""
    fleet, pairs = play.fleets[-1], []
    request, engine = play.case["request"]["steps"][0]["request"], fleet.engines[0]

    async def worker():
        for k in range(100):
            q, body = build(request, play.filler, k)
            r = await send(q, body, (engine.host, engine.port), 10)
            pairs.append((r, next((rec for rec in fleet.log[::-1] if rec.mark == r.mark), None)))

    await asyncio.gather(*(worker() for _ in range(play.scale.get("parallel", 32))))
    own = [r.ms - (rec.t_done - rec.t_head) * 1000 for r, rec in pairs if rec and rec.t_done]
    play.direct_p99 = statistics.quantiles(own, n=100)[-1]
    fleet.log.clear()
