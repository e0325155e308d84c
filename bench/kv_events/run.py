#!/usr/bin/env python3
"""What KV events are worth: sessions that do not all fit into a real engine's cache, once with events and once without.

An engine must run already, alone, with prefix caching, reports of cached tokens and events, for example:

  vllm serve MODEL --port 8001 --enable-prompt-tokens-details --kv-events-config \\
    '{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5557"}'

  run.py --ramjet target/release/ramjet --engine http://127.0.0.1:8001 --model MODEL --port 5557

(or --bind 127.0.0.1:5557 --topic TOPIC where the engine connects). Both runs ask the same, under other words, so that
neither finds what the other left. Printed is how far what ramjet expected to be cached was from what the engine reported:
wrong is an answer that it missed by more than a twentieth of the prompt. Standard library only.
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
            f"log: {{ access: off }}\nfleet:\n{fleet}  replicas:\n    - {{ {replica} }}\n"
        )
        self.conf.flush()
        self.process = subprocess.Popen([args.ramjet, "-c", self.conf.name], stderr=subprocess.DEVNULL)

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
        raise SystemExit("ramjet does not come up, or the engine is not healthy")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=30)
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())


class Load:
    """Sessions whose turns come in a random order, some of them more often than others."""

    def __init__(self, args, salt):
        self.args, self.random = args, random.Random(args.seed)
        letters = random.Random(f"{args.seed} {salt}")
        self.words = ["".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=letters.randint(3, 8))) for _ in range(4000)]
        self.sessions = [self.begin() for _ in range(args.sessions)]
        self.busy, self.left, self.lock = set(), args.turns, threading.Lock()

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
            messages = self.sessions[number]
            body = {"model": self.args.model, "messages": messages, "max_tokens": 12, "temperature": 0}
            connection = http.client.HTTPConnection("127.0.0.1", api, timeout=600)
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            told = json.loads(answer.read())
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {told}")
            with self.lock:
                reply = told["choices"][0]["message"]["content"] or ""
                messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": self.text(20, 90)}]
                if len(messages) > 14:
                    self.sessions[number] = self.begin()
                self.busy.remove(number)

    def run(self, api):
        threads = [threading.Thread(target=self.work, args=(api,)) for _ in range(self.args.at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def judge(decisions):
    """A row of the table."""
    told = [(d["expected"]["cached_tokens"], d["ended"]) for d in decisions if d["ended"]]
    told = [(expected, ended) for expected, ended in told if ended["cached_tokens"] is not None]
    prompt = sum(ended["prompt_tokens"] for _, ended in told)
    cached = sum(ended["cached_tokens"] for _, ended in told)
    off = [(expected - ended["cached_tokens"], ended["prompt_tokens"]) for expected, ended in told]
    wrong = sum(abs(by) > whole / 20 for by, whole in off)
    return f"{len(told)} | {prompt // len(told)} | {cached / prompt:.1%} | {wrong} | {sum(abs(by) for by, _ in off) / prompt:.2%}"


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
    print("| | answers | tokens of a prompt | cached | wrong | off by, of the prompt |\n|---|---|---|---|---|---|", flush=True)
    for events in [False, True]:
        with Router(args, events) as router:
            Load(args, events).run(router.api)
            decisions = router.get(f"/api/decisions?limit={args.turns}")["decisions"]
        print(f"| {'with' if events else 'without'} events | {judge(decisions)} |", flush=True)


if __name__ == "__main__":
    main()
