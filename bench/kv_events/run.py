#!/usr/bin/env python3
"""What KV events are worth: sessions that do not all fit into a real engine's cache, once with events and once without.

An engine must run already, alone, with prefix caching, reports of cached tokens and events, for example:

  vllm serve MODEL --port 8001 --enable-prompt-tokens-details --kv-events-config \\
    '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'

  run.py --ramjet target/release/ramjet --engine http://127.0.0.1:8001 --model MODEL --port 5557

(or --bind 127.0.0.1:5557 --topic TOPIC where the engine connects). Both runs ask the same, under other words, so that
neither finds what the other left. Printed is how far what ramjet expected to be cached was from what the engine reported:
wrong is an answer that it missed by more than a twentieth of the prompt. What cannot be judged is counted, and why is told
below the table: what the client got, what ramjet says of it, and its lines of the log. Standard library only.
"""

import argparse
import http.client
import json
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter


# So many of a kind are shown at most.
MOST_TOLD = 10


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


class Router:
    """ramjet before one engine."""

    def __init__(self, args, events):
        self.api, self.admin = free_port(), free_port()
        fleet = f"  kv_events: {{ bind: '{args.bind}' }}\n" if events and args.bind else ""
        source = f"topic: '{args.topic}'" if args.bind else f"port: {args.port}"
        replica = f"name: engine, url: '{args.engine}'" + (f", kv_events: {{ {source} }}" if events else "")
        self.conf = tempfile.NamedTemporaryFile("w", suffix=".yaml")
        self.conf.write(
            f"listen: {{ api: ['127.0.0.1:{self.api}'], admin: '127.0.0.1:{self.admin}' }}\n"
            f"fleet:\n{fleet}  replicas:\n    - {{ {replica} }}\n"
        )
        self.conf.flush()
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log", errors="replace")
        self.process = subprocess.Popen([args.ramjet, "-c", self.conf.name], stdout=self.log, stderr=self.log)

    def __enter__(self):
        for _ in range(200):
            try:
                if self.get("/api/fleet")["replicas"][0]["state"] == "healthy":
                    # an engine that connects tries again after a moment
                    time.sleep(3)
                    return self
            except (OSError, ValueError):
                pass
            time.sleep(0.1)
        raise SystemExit("ramjet does not come up, or the engine is not healthy:\n" + "\n".join(self.lines()[-20:]))

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=30)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())

    def lines(self):
        """Its log."""
        with open(self.log.name, errors="replace") as log:
            return log.read().splitlines()

    def decisions(self, most):
        """What it has decided, by request, once all of it has ended or for ten seconds."""
        for _ in range(100):
            decisions = self.get(f"/api/decisions?limit={most}")["decisions"]
            if all(decision["ended"] for decision in decisions):
                break
            time.sleep(0.1)
        return {decision["id"]: decision for decision in decisions}


class Asked:
    """A request, as its client saw it."""

    def __init__(self):
        self.began, self.id, self.status, self.error, self.usage, self.end = time.time(), None, None, None, None, None

    def is_answered(self):
        return self.status == 200 and self.error is None

    def __str__(self):
        got = f"status {self.status}" if self.status else "no status"
        took = f" after {self.end - self.began:.1f} s" if self.end else ""
        usage = f", usage {json.dumps(self.usage)}" if self.usage else ""
        return f"{got}{took}{usage}" + (f", {self.error}" if self.error else "")


class Load:
    """Sessions whose turns come in a random order, some of them more often than others."""

    def __init__(self, args, salt):
        self.args, self.random = args, random.Random(args.seed)
        letters = random.Random(f"{args.seed} {salt}")
        self.words = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=letters.randint(3, 8))) for _ in range(4000)]
        self.sessions = [self.begin() for _ in range(args.sessions)]
        self.busy, self.left, self.lock, self.asked = set(), args.turns, threading.Lock(), []

    def text(self, low, high):
        return " ".join(self.random.choices(self.words, k=self.random.randint(low, high)))

    def begin(self):
        return [{"role": "user", "content": self.text(400, 1400)}]

    def pick(self):
        with self.lock:
            if self.left == 0:
                return None
            self.left -= 1
            free = [n for n in range(len(self.sessions)) if n not in self.busy]
            number = self.random.choices(free, [1 / (1 + n / 4) for n in free])[0]
            self.busy.add(number)
            return number

    def work(self, api):
        while (number := self.pick()) is not None:
            asked, messages = Asked(), self.sessions[number]
            reply = None
            try:
                reply = self.ask(api, messages, asked)
            except (OSError, ValueError, KeyError, IndexError, TypeError, http.client.HTTPException) as e:
                asked.error = f"{type(e).__name__}: {e}"
            asked.end = time.time()
            with self.lock:
                self.asked.append(asked)
                if reply is not None:
                    messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": self.text(20, 90)}]
                # a session whose turn has failed is over
                if reply is None or len(messages) > 14:
                    self.sessions[number] = self.begin()
                self.busy.remove(number)

    def ask(self, api, messages, asked):
        """The text of the answer."""
        body = {"model": self.args.model, "messages": messages, "max_tokens": 12, "temperature": 0}
        connection = http.client.HTTPConnection("127.0.0.1", api, timeout=600)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            asked.id, asked.status = answer.getheader("x-ramjet-request-id"), answer.status
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            asked.error = f"x-ramjet-error {answer.getheader('x-ramjet-error')}: {text[:300].decode(errors='replace')}"
            return None
        told = json.loads(text)
        asked.usage = told.get("usage")
        return told["choices"][0]["message"]["content"] or ""

    def run(self, api):
        threads = [threading.Thread(target=self.work, args=(api,)) for _ in range(self.args.at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def kind_of(asked):
    """What went wrong, without its details."""
    return asked.error.split(":")[0] if asked.error else "no error"


def why_not(asked, decision):
    """Why a request cannot be judged, in a few words; nothing if it can."""
    if not asked.is_answered():
        return f"status {asked.status}, {kind_of(asked)}" if asked.status else f"no answer, {kind_of(asked)}"
    if decision is None:
        return "ramjet lists no decision"
    if not decision["ended"]:
        return "ramjet does not know yet that it has ended"
    if decision["ended"]["cached_tokens"] is None:
        return "the engine does not say how much was cached (vLLM leaves out a zero)"
    return None


def judge(asked, decisions):
    """A row of the table."""
    told = [decisions.get(one.id) for one in asked if why_not(one, decisions.get(one.id)) is None]
    told = [(decision["expected"]["cached_tokens"], decision["ended"]) for decision in told]
    if not told:
        return f"0 of {len(asked)} | | | |"
    prompt = sum(ended["prompt_tokens"] for _, ended in told)
    cached = sum(ended["cached_tokens"] for _, ended in told)
    off = [(expected - ended["cached_tokens"], ended["prompt_tokens"]) for expected, ended in told]
    wrong = sum(abs(by) > whole / 20 for by, whole in off)
    row = f"{prompt // len(told)} | {cached / prompt:.1%} | {wrong} | {sum(abs(by) for by, _ in off) / prompt:.2%}"
    return f"{len(told)} of {len(asked)} | {row}"


def explain(name, asked, decisions, lines):
    """Why what is missing is missing."""
    of = [(one, decisions.get(one.id)) for one in asked]
    missing = [(one, decision, why) for one, decision in of if (why := why_not(one, decision))]
    for why, count in Counter(why for *_, why in missing).most_common():
        print(f"{name}: {count} not judged: {why}")
    for one, decision, why in missing[:MOST_TOLD]:
        print(f"- request {asked.index(one) + 1} of {len(asked)} ({one.id}): {why}\n  client: {one}")
        print(f"  ramjet: {json.dumps(decision)}")
        for line in [line for line in lines if one.id and one.id in line][:MOST_TOLD]:
            print(f"  log: {line}")
    strange = [decision for key, decision in decisions.items() if key not in {one.id for one in asked}]
    for decision in strange[:MOST_TOLD]:
        print(f"- a decision whose answer no client has: {json.dumps(decision)}")
        for line in [line for line in lines if decision["id"] in line][:MOST_TOLD]:
            print(f"  log: {line}")
    said = [line for line in lines if {"WARN", "ERROR"} & set(line.split()[:2])]
    for line in said[:MOST_TOLD]:
        print(f"- ramjet warned: {line}")
    print(end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ramjet", required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, default=5557)
    parser.add_argument("--bind")
    parser.add_argument("--topic", default="")
    parser.add_argument("--sessions", type=int, default=22)
    parser.add_argument("--turns", type=int, default=260)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    reasons = []
    print("| | answers | tokens of a prompt | cached | wrong | off by, of the prompt |\n|---|---|---|---|---|---|", flush=True)
    for events in [False, True]:
        with Router(args, events) as router:
            load = Load(args, events)
            load.run(router.api)
            decisions, lines = router.decisions(args.turns), router.lines()
        name = f"{'with' if events else 'without'} events"
        print(f"| {name} | {judge(load.asked, decisions)} |", flush=True)
        reasons.append((name, load.asked, decisions, lines))
    print()
    for reason in reasons:
        explain(*reason)


if __name__ == "__main__":
    main()
