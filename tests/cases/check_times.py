"""Checks of time, of how many requests succeeded, and of who served them."""

import statistics

from check import CHECKS, check, each, final, late, shares, short

# time


def delays(r):
    """Per write of the engine: milliseconds until the client had it."""
    rec = final(r)
    return [(r.t_at(n) - t) * 1000 if r.t_at(n) else None for t, n in rec.writes] if rec else []


CHECKS["first_event_within_ms"] = each(lambda play, c, r: late((delays(r) or [None])[0], c, play, "first event"))
CHECKS["first_header_within_ms"] = each(
    lambda play, c, r: late(
        (r.t_head - final(r).t_head_out) * 1000 if r.t_head and final(r) and final(r).t_head_out else None,
        c,
        play,
        "headers",
    )
)
CHECKS["max_delay_per_event_ms"] = each(
    lambda play, c, r: late(None if not delays(r) or None in delays(r) else max(delays(r)), c, play, "slowest event")
)
CHECKS["latency_ms_max"] = each(lambda play, c, r: late(r.ms, c, play, f"answer ({r.status})"))
CHECKS["client_stream_ends_within_ms"] = each(
    lambda play, c, r: late(r.ms if "nothing more" not in r.error else None, c, play, "end of stream")
)
CHECKS["client_sees_1xx"] = each(
    lambda play, c, r: late(
        (r.interim[0][0] - r.t_start) * 1000 if r.interim else None, {"ms": c["within_ms"]}, play, f"{c['status']}"
    )
)


@check("client_sees_text_within_ms")
@each
def _(play, c, r):
    rec, i = final(r), r.body.data.find(c["text"].encode())
    return late(
        (r.t_at(i + 1) - next(t for t, n in rec.writes if n >= i + 1)) * 1000 if rec and i >= 0 else None,
        c,
        play,
        c["text"],
    )


@check("min_gap_between_reads_ms")
@each
def _(play, c, r):
    at = [r.t_at(n) for _, n in final(r).writes] if final(r) else []
    gaps = [(b - a) * 1000 for a, b in zip(at, at[1:]) if a and b]
    return None if gaps and min(gaps) >= c["ms"] else f"gaps {[round(g) for g in gaps]} ms"


@check("no_100_before_final")
def _(play, c):
    r = play.replies[c["request_index"]]
    return [f"interim {r.interim}"] if r.interim else []


@check("p95_latency_ms_max")
def _(play, c):
    v = statistics.quantiles([r.ms for r in play.replies], n=20)[-1]
    return [f"p95 {v:.0f} ms > {c['ms'] * play.slack:.0f}"] if v > c["ms"] * play.slack else []


@check("p99_router_overhead_ms_max")
def _(play, c):
    def over(rs):
        return statistics.quantiles(
            [r.ms - (r.recs[-1].t_done - r.recs[-1].t_head) * 1000 for r in rs if r.recs and r.recs[-1].t_done], n=100
        )[-1]

    v, base = over(play.replies), play.direct_p99 or 0
    return [f"p99 {v:.1f} ms, of it {base:.1f} the harness"] if v - base > c["ms"] * play.slack else []


# success


def ratio(rs):
    return sum(r.ok() for r in rs) / len(rs) if rs else 0


def ratio_problem(rs, c):
    bad = [r for r in rs if not r.ok()]
    return (
        []
        if ratio(rs) >= c["ratio"]
        else [
            f"{len(bad)} of {len(rs)} failed, e.g. {bad[0].status} {bad[0].error} {short(bad[0].text, 80)}"
            if bad
            else "no requests"
        ]
    )


CHECKS["success_ratio_min"] = lambda play, c: ratio_problem(play.select(c), c)
CHECKS["success_ratio_min_last_step"] = CHECKS["last_step_success_ratio_min"] = lambda play, c: ratio_problem(
    play.select({"step": play.last_step}), c
)
CHECKS["background_success_ratio_min"] = lambda play, c: ratio_problem(play.background, c)


# shares


def share_problem(s, low, high):
    text = " ".join(f"{k} {v:.0%}" for k, v in s.items())
    return [f"shares {text}"] if max(s.values()) > high or min(s.values()) < low else []


CHECKS["share_of_last_step"] = lambda play, c: share_problem(
    shares(play, play.select({"step": play.last_step})), c.get("min", 0), c.get("max", 1)
)
CHECKS["share_of_step"] = lambda play, c: share_problem(shares(play, play.select(c)), 0, c["max"])
CHECKS["min_share"] = lambda play, c: share_problem(shares(play, play.replies), c["share"], 1)


@check("same_engine_share")
def _(play, c):
    out, groups = [], {}
    for r in play.select(c):
        groups.setdefault(r.group, []).append(r)
    for g, rs in groups.items():
        s = shares(play, rs)
        home = max(s, key=s.get)
        if "as_step" in c:
            t = shares(play, play.select({"step": c["as_step"]}))
            home = max(t, key=t.get)
        if not rs or s[home] < c["min"]:
            out.append(f"{s.get(home, 0):.0%} met {home}: " + " ".join(f"{k} {v:.0%}" for k, v in s.items()))
    return out


@check("busier_engine_gets_less")
def _(play, c):
    held = play.holding
    s = shares(play, play.select(c))
    high, low = max(held, key=held.get), min(held, key=held.get)
    return [f"engines held {held}, new work {s}"] if held[high] >= 2 * held[low] + 2 and s[high] > c["max"] else []
