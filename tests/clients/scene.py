"""What every client program does: it asks what an engine saw, and tells what it found, one line of JSON a check."""

import contextlib
import itertools
import json
import sys
import time
import traceback
import urllib.request

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback, whatever the environment says
PATIENCE = 20  # seconds for what happens by itself
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "number"}},
    "required": ["city", "days", "exact"],
}


class Stage:
    """Where everything is, as run.py tells it."""

    def __init__(self):
        self.__dict__.update(json.loads(sys.argv[1]))
        self.program = sys.argv[0].rsplit("/", 1)[-1].split(".")[0]
        self.numbers = itertools.count()

    def tag(self):
        return f"{self.program}{next(self.numbers)}"

    def engines_say(self, verb, tag):
        """What the engines know of a tag: requests, streams that run, clients that left."""
        asked = urllib.request.Request(f"{self.engine}/{verb}/{tag}", method="POST" if verb == "_go" else "GET")
        told = json.load(OPENER.open(asked, timeout=PATIENCE))
        return told["requests"], told["running"], told["left"]

    def requests(self, tag):
        return self.engines_say("_seen", tag)[0]

    def go(self, tag):
        self.engines_say("_go", tag)

    def left(self, tag):
        """Whether a client's leaving reaches its engine."""
        return until(lambda: self.engines_say("_seen", tag)[1:] == (0, 1))

    def llama_rests(self):
        """Whether llama.cpp has stopped; it looks after its clients once a second, unless it is asked more often."""

        def rests():
            slots = json.load(OPENER.open(f"{self.llama}/slots", timeout=PATIENCE))
            return not any(slot["is_processing"] for slot in slots)

        return until(rests, 1.5)


def until(condition, pause=0.02):
    end = time.monotonic() + PATIENCE
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return value


def say(name, passed, figures=""):
    print(json.dumps({"check": name, "passed": bool(passed), "figures": str(figures)[:300]}), flush=True)


@contextlib.contextmanager
def check(name):
    """One check: it passes if nothing in it fails; what `told` is given is shown."""
    told = []
    try:
        yield told.append
        say(name, True, " ".join(map(str, told)))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} (line {at.lineno}: {at.line}) {' '.join(map(str, told))}"
        say(name, False, text)


def same(found, wanted):
    if found != wanted:
        raise AssertionError(f"found {found!r}, wanted {wanted!r}")


def raises(kind, ask):
    """The error of this kind that `ask` ends with."""
    try:
        ask()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")
