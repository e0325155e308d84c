#!/usr/bin/env python3
"""Opens the dashboard in Chromium, in every view, light and dark, narrow and wide, and uses it.

    tests/page/run.py [--ramjet target/debug/ramjet] [--shots FOLDER]

Needs Chromium (`$CHROMIUM`, or `chromium` on the PATH; Debian: apt-get install chromium); without it, it says so and is
skipped. What drives it comes pinned from PyPI into the folder of the end-to-end test's tools. With --shots, a picture of each
view is left there, to be looked at.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path += [str(HERE), str(HERE.parent / "e2e")]

import install
import procs
import scene
import tally

HOSTILE = "<img src=x onerror=window.owned=1>"
PATIENCE = 300  # seconds for all of it


def play(python, stage, chromium, shots, log):
    """What the browser finds, as (check, passed, figures)."""
    told = {"admin": stage.admin, "model": stage.model, "chromium": chromium, "shots": str(shots or "")}
    child = subprocess.Popen(
        [python, HERE / "look.py", json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=open(log, "wb"),
        text=True,
    )
    with child:
        for line in child.stdout:
            said = json.loads(line)
            if "do" in said:  # something is to happen on the stage
                stage.have(said["do"], said["engine"])
                child.stdin.write("done\n")
                child.stdin.flush()
                continue
            yield said["check"], said["passed"], said["figures"]
        code = child.wait(PATIENCE)
    yield "the browser ran to its end", code == 0, log.read_text(errors="replace")[-800:] if code else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ramjet", type=pathlib.Path, default=ROOT / "target/debug/ramjet", help="the binary to test")
    parser.add_argument("--shots", type=pathlib.Path, help="where pictures go")
    args = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not chromium:
        print("SKIPPED: Chromium is not installed (Debian: apt-get install chromium; or set CHROMIUM)")
        return 0
    procs.exit_on_signals()
    python = install.environment("page", HERE / "requirements.txt")
    if args.shots:
        args.shots.mkdir(parents=True, exist_ok=True)

    def checks(logs):
        names = ["gpu-a", "gpu-b", "gpu-with-a-rather-long-name.rack-17.example"]
        with scene.Stage(args.ramjet.resolve(), logs, HOSTILE, names) as stage, stage.load():
            yield from play(python, stage, chromium, args.shots, logs / "look.log")

    return tally.run("page", checks)


if __name__ == "__main__":
    sys.exit(main())
