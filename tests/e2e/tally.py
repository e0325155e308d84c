"""The course of a run: each check as a line when it is known, the sums, and the logs where something failed."""

import collections
import pathlib
import shutil
import tempfile


def run(name, checks):
    """Runs `checks(logs)`, which yields (check, passed, figures) and may write into the folder `logs`; the exit code."""
    logs, counts = pathlib.Path(tempfile.mkdtemp(prefix=f"ramjet-{name}-")), collections.Counter()
    try:
        for check, passed, figures in checks(logs):
            counts[bool(passed)] += 1
            print(f"{'ok  ' if passed else 'FAIL'} {check}{'' if passed else f': {figures}'}", flush=True)
    except Exception as error:
        counts[False] += 1
        print(f"FAIL ran to the end: {type(error).__name__}: {error}")
    if counts[False]:
        print(f"logs: {logs}")
    else:
        shutil.rmtree(logs)
    print(f"{counts[True]} passed, {counts[False]} failed")
    return counts[False] > 0
