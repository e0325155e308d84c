#!/usr/bin/env python3
"""Plays the field cases against ramjet: scripted engines on one side, raw clients on the other.

    tests/cases/run.py [CASE or category ...] [--ramjet target/debug/ramjet]

Another file of cases is read from RAMJET_CASES; an overrides.json or expected_failures.json beside it counts as well.
The exit code is 0 if no case failed but those of expected_failures.json, and each of those did fail.
"""

import argparse
import asyncio
import json
import logging
import os
import pathlib
import re
import signal
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
MOST_SECONDS = 700  # for one case
# what a busy machine can cause: such failures are played again alone, and a pass that needed it says so
PERHAPS_NOISE = re.compile(r"\d ms|never|within|shares|RSS|reset|closed|refused|RUNNER")


def own_environment():
    """Starts again in the virtual environment that holds requirements.txt, made on the first run."""
    sys.path.append(str(HERE.parent / "e2e"))
    import install

    python = install.environment("cases", HERE / "requirements.txt")
    if pathlib.Path(sys.prefix) != python.parent.parent:
        os.execv(python, [python, *sys.argv])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="CASE", help="ids or categories; all cases if none is given")
    parser.add_argument("--ramjet", type=pathlib.Path, default=ROOT / "target/debug/ramjet", help="the binary to test")
    parser.add_argument("--jobs", type=int, default=2, help="cases at once")
    parser.add_argument("--slack", type=float, default=1.0, help="factor on limits of time, for a slow machine")
    parser.add_argument("--full", action="store_true", help="the full size of the few cases that are scaled down")
    parser.add_argument("--keep-bytes", metavar="DIR", help="write what was sent and read, a file for each case")
    return parser.parse_args()


def load(folders):
    """Overrides and expected failures of all folders, later ones first."""
    overrides, expected = {"setup": {}, "corrections": {}}, {}
    for folder in folders:
        if (path := folder / "overrides.json").exists():
            for part, entries in json.loads(path.read_text()).items():
                if part in overrides:
                    overrides[part].update(entries)
        if (path := folder / "expected_failures.json").exists():
            expected.update(json.loads(path.read_text()))
    return overrides, expected


class Run:
    """All cases: most of them side by side, big ones alone, then perhaps noisy failures again."""

    def __init__(self, cases, overrides, binary, args):
        self.cases, self.overrides, self.binary, self.args = cases, overrides, binary, args
        self.results, self.gate = {}, asyncio.Semaphore(args.jobs)

    def how(self, case, key):
        return self.overrides["setup"].get(case["id"], {}).get(key)

    async def guarded(self, case):
        from conduct import conduct

        try:
            return await asyncio.wait_for(conduct(case, self.overrides, self.binary, self.args), MOST_SECONDS)
        except asyncio.TimeoutError:
            return "FAIL", [f"RUNNER ERROR: the case took more than {MOST_SECONDS} s"], MOST_SECONDS
        except Exception as e:  # a fault of this program: never a pass, never silent
            at = traceback.extract_tb(e.__traceback__)[-1]
            where = f"{os.path.basename(at.filename)}:{at.lineno}"
            return "FAIL", [f"RUNNER ERROR {type(e).__name__}: {e} ({where})"], 0

    async def play(self, case, alone=False):
        if alone:
            self.results[case["id"]] = await self.guarded(case)
        else:
            async with self.gate:
                self.results[case["id"]] = await self.guarded(case)

    async def all(self):
        heavy = [c for c in self.cases if self.how(c, "alone")]
        slow = [c for c in self.cases if self.how(c, "slow")]  # mostly waiting: beside all others
        waiting = [asyncio.ensure_future(self.play(c, alone=True)) for c in slow]
        await asyncio.gather(*(self.play(c) for c in self.cases if c not in heavy and c not in slow))
        for c in heavy:
            await self.play(c, alone=True)
        await asyncio.gather(*waiting)
        return self.results

    async def again(self, expected):
        """A machine that is busy with other cases can make a pass look like a failure: looks again, alone."""
        for c in self.cases:
            verdict, why, _ = self.results[c["id"]]
            if (
                verdict != "FAIL"
                or c["id"] in expected
                or self.args.jobs == 1
                or not PERHAPS_NOISE.search(" ".join(why))
            ):
                continue
            await self.play(c, alone=True)
            verdict, _, seconds = self.results[c["id"]]
            if verdict == "PASS":
                self.results[c["id"]] = verdict, [f"passed when played alone; before: {why[0]}"], seconds


def report(cases, results, expected):
    """Prints a line for each case and the sums; returns how many results are wrong."""
    wrong = 0
    for c in cases:
        verdict, why, seconds = results[c["id"]]
        known = expected.get(c["id"])
        if known and verdict == "PASS":
            verdict, why = "FAIL", ["it is expected to fail, and passed: take it from expected_failures.json"]
            wrong += 1
        elif known:
            verdict, why = "known", [known]
        elif verdict == "FAIL":
            wrong += 1
        print(f"{verdict:5} {c['id']} {c['category']:17} {seconds:6.1f} s  {c['title'][:66]}")
        for line in why:
            print(f"      {line}")
    count = {v: sum(r[0] == v for r in results.values()) for v in ("PASS", "FAIL", "SKIP")}
    skipped = f", {count['SKIP']} skipped" if count["SKIP"] else ""
    print(f"{count['PASS']} passed, {count['FAIL']} failed{skipped}")
    if wrong:
        print(f"{wrong} not as expected")
    return wrong


async def main(args):
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    for sig in (signal.SIGTERM, signal.SIGINT):  # leave no process behind
        asyncio.get_running_loop().add_signal_handler(sig, asyncio.current_task().cancel)
    path = pathlib.Path(os.environ.get("RAMJET_CASES") or HERE / "field_cases.json").resolve()
    overrides, expected = load([HERE] if path.parent == HERE else [HERE, path.parent])
    cases = json.loads(path.read_text())["cases"]
    if args.only:
        cases = [c for c in cases if c["id"] in args.only or c["category"] in args.only]
    if not cases:
        sys.exit(f"no case of {path} is called {' or '.join(args.only)}")
    if not args.ramjet.is_file():
        sys.exit(f"there is no {args.ramjet}: build it first, or name it with --ramjet")
    started, run = time.monotonic(), Run(cases, overrides, str(args.ramjet.resolve()), args)
    await run.all()
    await run.again(expected)
    wrong = report(cases, run.results, expected)
    print(f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    return int(wrong > 0)


if __name__ == "__main__":
    parsed = arguments()
    own_environment()
    try:
        sys.exit(asyncio.run(main(parsed)))
    except asyncio.CancelledError:
        sys.exit("stopped")
