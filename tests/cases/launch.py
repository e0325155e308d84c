"""Cases about starting: wrong configuration, wrong URLs, addresses in use."""

import asyncio
import json
import os
import re
import socket
import tempfile

import ramjet
from client import send
from play import CHAT
from recipes import chat, dumps

FOREIGN = "203.0.113.9"  # an address of no machine (RFC 5737)


def workers_of(start, kind, engine):
    """The worker URLs of a variant with the engine's address in them."""
    host, port = engine.rsplit(":", 1)
    out = [w.split(" (")[0].replace("E1:80 80", f"{host}:80 80") for w in start["workers"]]
    if kind == "workers":
        out = [w.replace("E1:80", engine) if w.endswith(":80") else w for w in out]
    return [re.sub(r"E1(?=:)", host, w).replace("E1", engine) for w in out]


def spec_of(play, start, kind, fleet, used):
    """What to start for a variant, and its label."""
    urls, label = play.urls(fleet), json.dumps(start)[:60]
    if kind in ("unknown", "typo", "column", "broken", "duplicate", "types"):
        spec = play.spec(urls)
        spec.text = ramjet.broken_config(kind, spec)
        return spec, kind
    if kind == "file":
        return play.spec(urls, file=os.path.join(tempfile.gettempdir(), "no-such-ramjet-case-file")), label
    if kind == "flag":
        return play.spec(urls, args=start["args"]), label
    if kind == "listen":
        return play.spec(urls, port=used), label
    if kind == "metrics_listen":
        return play.spec(urls, admin=used), label
    if kind == "address":
        spec = play.spec(urls, port=9000)
        spec.host = FOREIGN
        return spec, label
    if "workers" in start:
        return play.spec(workers_of(start, kind, fleet.engines[0].authority)), start["workers"][0]
    if "args" in start:
        names = [("E1", fleet["E1"].authority), ("E2", fleet["E2"].authority), ("--worker-urls", "--upstream")]
        args = start["args"]
        for a, b in names:
            args = [arg.replace(a, b) for arg in args]
        return play.spec(None, args=args), label
    return play.spec(None, env={"RJ_UPSTREAM": ""}), "empty RJ_UPSTREAM"


async def effective(play, p, kind, fleet, since):
    """How many replicas it works with: engines that it asks, or for one engine under several names its series."""
    play.shown = [await p.metrics()]
    for k in range(2):
        await send(CHAT, dumps(chat(f"spread {k}" * 400)), p.addr, 5)
    saw = {rec.engine.name for rec in fleet.log[since:]}
    if kind == "workers":
        saw = set(re.findall(r'upstream="(\d+)"', play.shown[0])) or saw
    return len(saw)


async def launches(play):
    fleet = await play.fleet()
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen(1)
        kinds = play.setup.get("kinds")
        for i, v in enumerate(play.case["request"]["variants"]):
            kind, start = kinds[i] if kinds else None, v["start_router"]
            spec, label = spec_of(play, start, kind, fleet, busy.getsockname()[1])
            await launch(play, spec, label, kind, fleet, asks="args" in start or kind == "workers")


async def launch(play, spec, label, kind, fleet, asks):
    """Starts one variant, sees whether it ends or serves, and stops it."""
    since = len(fleet.log)
    p = ramjet.Process(play.binary, spec)
    await p.spawn()
    ready = None
    try:
        await asyncio.wait_for(p.proc.wait(), (1.5 if kind == "workers" else 3) * play.slack)
    except asyncio.TimeoutError:
        ready = 0
    count = len({rec.engine.name for rec in fleet.log[since:]})
    if ready is not None and asks:
        count = await effective(play, p, kind, fleet, since)
    workers = spec.workers or play.urls(fleet)
    seen = {"label": label, "workers": workers, "rc": p.rc, "log": p.log(), "effective": count, "ready": ready}
    play.launches.append(seen)
    play.logs += seen["log"]
    await p.stop()
