"""Whether a case that was played holds: every status and every named check, none of the prose."""

import inspect
import os

import check_answers  # noqa: F401 (the checks register themselves)
import check_engines  # noqa: F401
import check_router  # noqa: F401
import check_times  # noqa: F401
from check import CHECKS, short, who


def allowed(play, r):
    """The statuses that this answer may have; None: any."""
    status, fix = play.case["expect"]["status"], play.fix
    if str(r.step) in fix.get("status_by_step", {}):
        return fix["status_by_step"][str(r.step)]
    if "status" in fix:
        status = fix["status"]
        if isinstance(status, list) and isinstance(status[0], list):
            status = status[r.variant - 1]
    if isinstance(status, dict):
        last = status.get("last_step") if r.step == play.last_step else None
        status = status.get("first_step") if r.step == 1 else last
    return status if isinstance(status, list) or status is None else [status]


def checks_of(play):
    """The checks of a case with what `overrides.json` corrects in them."""
    fix, out, seen = play.fix, [], {}
    for c in play.case["expect"]["checks"]:
        c, t = dict(c), c["t"]
        c.update(fix.get("replace", {}).get(t, {}))
        if t in fix.get("variant", {}):
            c["variant"] = fix["variant"][t]
        if t in fix.get("step", {}):
            c["step"] = fix["step"][t][seen.get(t, 0)]
            seen[t] = seen.get(t, 0) + 1
        if t == "success_ratio_min" and "ratio_step" in fix:
            c["step"] = fix["ratio_step"]
        if t not in fix.get("drop", []):
            out.append(c)
    return out + fix.get("add", [])


def wrong_statuses(play, checks):
    """Where a ratio of successes is asked for, it alone judges requests without an answer."""
    ratio = any(c["t"] in ("success_ratio_min", "last_step_success_ratio_min") for c in checks)
    out = []
    for r in play.replies:
        ok = allowed(play, r)
        excused = r.error == "client left" or ratio and r.status is None
        if ok is not None and r.status not in ok and not excused:
            error = f" ({r.error})" if r.error else ""
            out.append(f"{who(r)}status {r.status}{error}, not {ok}: {short(r.text, 90)}")
    return out[:3]


async def judge(play):
    """What does not hold (nothing: passed), and what could not be judged at this scale."""
    checks, skipped = checks_of(play), play.scale.get("skip_checks", [])
    problems = wrong_statuses(play, checks)
    for c in checks:
        if c["t"] in skipped:
            continue
        found = CHECKS[c["t"]](play, c)
        found = await found if inspect.isawaitable(found) else found
        problems += [f"{c['t']}: {m}" for m in found[:2]]
        if len(found) > 2:
            problems.append(f"{c['t']}: {len(found) - 2} more")
    return problems, [f"{c['t']} is judged with --full only" for c in checks if c["t"] in skipped]


def dump(play, folder):
    """Writes the bytes of a case, to be looked at by eye."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, f"{play.case['id']}.txt"), "w") as f:
        for r in play.replies[:40] + play.background[:5] + [a for _, a in play.after][:9]:
            f.write(
                f"=== {r.req['method']} {r.req['path']} step {r.step} variant {r.variant} {r.ms:.0f} ms "
                f"interim {r.interim} error {r.error!r} clean {r.clean} framing {r.framing} closed {r.closed}\n"
                f"sent {r.sent.n} bytes {bytes(r.sent.data[:300])!r}\nraw head {r.raw_head!r}\n"
                f"body {r.body.n} {bytes(r.body.data[:600])!r}\n"
            )
            for rec in r.recs:
                abort = rec.t_abort and rec.t_abort - r.t_start
                f.write(
                    f"  -> {rec.engine.name} {rec.line} {rec.headers} framing {rec.framing} body {rec.body.n} "
                    f"{bytes(rec.body.data[:300])!r}\n"
                    f"     answered {rec.status} {rec.answered} abort {abort} out {rec.out.n}\n"
                )
        start = play.proc.t_spawn if play.proc else 0
        for rec in play.log[:60]:
            f.write(f"{rec.t_head - start:.2f} {rec.engine.name} {rec.line} client={rec.client} status={rec.status}\n")
        f.write("--- ramjet's log\n" + play.logs[-6000:])
