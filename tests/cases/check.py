"""What all checks share: the table of them by name, and how one looks at each answer or each request at an engine.

A check is `f(play, check) -> [problem, ...]`; an empty list means that it holds. `check` is its entry in the case.
"""

import json

CHECKS = {}


def check(*names):
    """Puts a function into the table under these names."""

    def entered(f):
        for n in names:
            CHECKS[n] = f
        return f

    return entered


def short(what, n=110):
    text = what if isinstance(what, str) else repr(what)
    return text if len(text) <= n else text[:n] + "…"


def who(r):
    """Which variant or step an answer belongs to."""
    return f"[{r.variant or r.step or ''}] " if r.variant or r.step else ""


def each(f):
    """A check made of a test per reply: f(ctx, check, reply) -> problem or None."""

    def run(play, c):
        out = []
        for r in play.select(c):
            p = f(play, c, r)
            if p:
                out.append(who(r) + p)
        return out

    return run


def per_rec(f):
    """A check made of a test per (reply, what an engine saw of it)."""

    def run(play, c):
        out = []
        for r in play.select(c):
            if not r.recs and r.status == 200 and r.req["method"] == "POST" and not c.get("vacuous"):
                out.append(who(r) + "no engine saw it")
            out += [who(r) + p for rec in r.recs if (p := f(play, c, r, rec))]
        return out

    return run


def final(r):
    """What the last engine saw of a request."""
    return r.recs[-1] if r.recs else None


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return None


def late(value, c, play, what):
    limit = c["ms"] * play.slack
    return f"{what}: never" if value is None else f"{what}: {value:.0f} ms > {limit:.0f}" if value > limit else None


def shares(play, rs):
    served = [r.recs[-1].engine.name for r in rs if r.recs]
    return {e.name: served.count(e.name) / max(1, len(served)) for f in play.fleets for e in f.engines}
