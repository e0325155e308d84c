"""What all checks share: the table of them by name, and how one looks at each answer or each request at an engine.

A check is `f(play, check) -> [problem, ...]`; an empty list means that it holds. `check` is its entry in the case.
"""

import json

CHECKS = {}


def check(*names):
    def deco(f):
        for n in names:
            CHECKS[n] = f
        return f

    return deco


def short(x, n=110):
    x = x if isinstance(x, str) else repr(x)
    return x if len(x) <= n else x[:n] + "…"


def who(r):
    return f"[{r.variant or r.step or ''}] " if r.variant or r.step else ""


def each(f):
    """A check made of a test per reply: f(ctx, check, reply) -> problem or None."""

    def run(x, c):
        out = []
        for r in x.select(c):
            p = f(x, c, r)
            if p:
                out.append(who(r) + p)
        return out

    return run


def per_rec(f):
    """A check made of a test per (reply, what an engine saw of it)."""

    def run(x, c):
        out = []
        for r in x.select(c):
            if not r.recs and r.status == 200 and r.req["method"] == "POST" and not c.get("vacuous"):
                out.append(who(r) + "no engine saw it")
            out += [who(r) + p for rec in r.recs if (p := f(x, c, r, rec))]
        return out

    return run


def final(r):
    return r.recs[-1] if r.recs else None


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def late(value, c, x, what):
    limit = c["ms"] * x.slack
    return f"{what}: never" if value is None else f"{what}: {value:.0f} ms > {limit:.0f}" if value > limit else None


def shares(x, rs):
    served = [r.recs[-1].engine.name for r in rs if r.recs]
    return {e.name: served.count(e.name) / max(1, len(served)) for f in x.fleets for e in f.engines}
