"""Checks of the process itself: its metrics, memory and log, how it starts and how it ends."""

import asyncio
import re

from check import CHECKS, check, short
from wire import now


@check("metric_inflight_returns_to")
async def _(play, c):
    end = now() + c["within_ms"] / 1000
    while True:
        m = await play.proc.inflight()
        if m and sum(m.values()) == c["n"]:
            return []
        if now() > end:
            return [f"in flight by its metric: {m}"]
        await asyncio.sleep(0.1)


@check("metric_inflight")
def _(play, c):
    if play.held is None:
        return ["the case takes no snapshot"]
    held, m = play.held
    return (
        []
        if sorted(v for v in m.values() if v) == sorted(v for v in held.values() if v)
        else [f"engines hold {held}, metric says {m}"]
    )


CHECKS["router_rss_growth_mb_max"] = CHECKS["router_memory_entries_bounded"] = lambda play, c: (
    [f"RSS grew {(play.proc.peak - play.proc.base) / 1e6:.0f} MB"]
    if play.proc.peak - play.proc.base > c.get("mb", 32) * 1e6
    else []
)
CHECKS["router_rss_after_idle_mb_max"] = lambda play, c: (
    [f"RSS {(play.idle_rss - play.proc.base) / 1e6:.0f} MB over baseline after idle"]
    if play.idle_rss - play.proc.base > c["mb"] * 1e6
    else []
)


@check("rss_slope_last_half_mb_per_1000_req_max")
def _(play, c):
    t0, t1 = play.replies[len(play.replies) // 2].t_start, play.replies[-1].t_start
    half = [(t, v) for t, v in play.proc.samples if t0 <= t <= t1]
    slope = (half[-1][1] - half[0][1]) / 1e6 / (len(play.replies) / 2000) if len(half) > 1 else 0
    return [f"{slope:.1f} MB per 1000 requests"] if slope > c["mb"] else []


@check("metrics_series_growth_max")
def _(play, c):
    if not all(play.metrics):
        return ["no metrics"]
    n = [len({line.rsplit(" ", 1)[0] for line in m.splitlines() if line and line[0] != "#"}) for m in play.metrics]
    return [f"{n[0]} series became {n[1]}"] if n[1] - n[0] > c["n"] else []


CHECKS["metrics_not_contains"] = lambda play, c: (
    [f"/metrics has {c['text']!r}"] if not play.metrics[1] or c["text"] in play.metrics[1] else []
)
CHECKS["log_not_contains"] = lambda play, c: [
    f"log: {short(line, 160)}" for line in play.logs.splitlines() if c["text"] in line
][:1]
CHECKS["router_alive"] = lambda play, c: (
    [] if play.alive and play.alive.status else [f"a normal request after it: {play.alive and play.alive.error}"]
)
CHECKS["worker_health_unchanged"] = lambda play, c: [
    f"a normal request after it: {r.status} {r.error}" for r in play.extra_replies if r.status != 200
][:1]
CHECKS["no_desync"] = lambda play, c: (
    [f"[{r.req['label']}] next request: {a.status} {a.error}" for r, a in play.after if a.status != 200]
    + [f"engine read {r.line!r}" for r in play.log if not r.line.startswith(("GET ", "POST ", "HEAD ", "OPTIONS "))]
)
CHECKS["next_request_on_same_connection_ok"] = lambda play, c: [
    f"after {r.req['method']} {r.req['path']}: {a.status} {a.error}" for r, a in play.after if a.status != 200
]
CHECKS["must_be_400"] = lambda play, c: [
    f"{r.req['label']!r}: {r.status or r.error}"
    for r in play.replies
    if r.req["label"] in c["labels"] and r.status not in (400, c.get("or_status"))
]
CHECKS["usage_chunk_only_in_request"] = lambda play, c: [
    f"variant {i}: usage chunk {'missing' if i == c['index'] else 'present'}"
    for i, r in enumerate(play.replies)
    if ('"choices":[]' in r.text) != (i == c["index"])
]
CHECKS["no_panic_backtrace"] = lambda play, c: [
    f"stderr: {short(line)}"
    for line in play.logs.splitlines()
    if re.search(r"panicked at|stack backtrace|Traceback \(most recent", line)
][:1]


# starts: play.launches


def refused(l):
    return l["rc"] not in (None, 0)


@check("exit_nonzero_within_ms")
def _(play, c):
    ls = (
        play.launches[:-1]
        if c.get("except_last")
        else [l for l in play.launches if l["label"] not in c.get("except_labels", [])]
    )
    return [
        f"{l['label']}: " + ("still running" if l["rc"] is None else f"exit {l['rc']}") for l in ls if not refused(l)
    ]


def named(url, authority_is_enough):
    """What must be said of a refused URL: all but user information, or no more than its authority."""
    if authority_is_enough and ("?" in url or "#" in url):
        url = url.split("?")[0].split("#")[0]
    return url.split("@")[-1].strip("/")


CHECKS["stderr_contains_any"] = lambda play, c: [
    f"{l['label']}: says {short(l['log'][-200:])!r}"
    for l in play.launches
    if refused(l) and not any(t in l["log"].lower() for t in c["texts"])
]
CHECKS["stderr_names_the_url"] = lambda play, c: [
    f"{l['label']}: not named in {short(l['log'][-160:])!r}"
    for l in play.launches
    if refused(l) and not any(named(u, c.get("authority_is_enough")) in l["log"] for u in l["workers"])
]
CHECKS["last_worker_counted_once_or_rejected"] = lambda play, c: (
    []
    if refused(play.launches[-1]) or play.launches[-1]["effective"] <= 1
    else [f"one worker in three spellings counts {play.launches[-1]['effective']}"]
)
CHECKS["workers_effective"] = lambda play, c: [
    f"{l['label']}: {l['effective']} workers" for l in play.launches if not (refused(l) or l["effective"] == c["n"])
]
CHECKS["ready_within_ms"] = lambda play, c: [
    f"{l['label']}: serving after {l['ready'] and round(l['ready'], 1)} s"
    for l in play.launches
    if l["workers"] and (l["ready"] is None or l["ready"] * 1000 > c["ms"] * play.slack)
]
CHECKS["exit_code"] = lambda play, c: [] if play.proc.rc == c["n"] else [f"exit code {play.proc.rc}"]
CHECKS["exit_within_ms_after_last_stream"] = lambda play, c: (
    [f"exited {play.exit_after and round(play.exit_after, 1)} s after the last stream"]
    if play.exit_after is None or play.exit_after * 1000 > c["ms"] * play.slack
    else []
)
CHECKS["ready_status_during_drain"] = lambda play, c: (
    []
    if play.drain and play.drain.status == c["status"]
    else [f"readiness said {play.drain and (play.drain.status or play.drain.error)}"]
)


@check("worker_shown_once")
def _(play, c):
    text = "\n".join(play.shown)
    port = play.fleets[-1].engines[0].port
    bad = set(re.findall(rf"[\[\w:]*[:\]]+:?{port}\b", text)) - {f"[::1]:{port}", f"//[::1]:{port}"}
    bad = {b for b in bad if "[::1]" not in b}
    return [f"worker shown as {sorted(bad)}"] if bad else []
