#!/usr/bin/env python3
"""What a request costs outside the kernel, counted by callgrind: ramjet, and the least that a proxy on Pingora can be.

    bench/profile/run.py [--bench target/release/ramjet-bench] [--body 1024] [--requests 500] [--functions 20]

Needs valgrind, and the router beside the bench. One connection, an engine that answers at once. Printed for each: the
instructions of a request, and how much code it runs through: the distinct lines of 64 bytes, and pages, that at least every
second request comes by. Code that runs once a request waits for its lines more than it computes, so they say more of its
time than the instructions do. Copies of more than 2 KiB count as one instruction a byte. Standard library only.
"""

import argparse
import collections
import http.client
import json
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
WARM_UP = 200
# "address line cost"; addresses are absolute, relative to the last one, or the same
COST = re.compile(r"(0x[0-9a-f]+|[+-]0x[0-9a-f]+|[+-]\d+|\*) \S+ (\d+)$")
NAME = re.compile(r"(fn|cfn)=\((\d+)\)(?: (.*))?$")


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def body(size, number):
    """A chat of one question, all of it new but for its first words."""

    def of(text):
        messages = [{"role": "system", "content": "You edit code."}, {"role": "user", "content": text}]
        return json.dumps({"model": "m", "max_tokens": 8, "messages": messages})

    words = f"question {number} " + "what becomes of this word " * (size // 26 + 1)
    return of(words[: max(0, size - len(of("")))])


def ask(port, requests, size):
    """That many requests, one after the other, on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for number in range(requests):
        connection.request("POST", "/v1/chat/completions", body(size, number % 50), {"content-type": "application/json"})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            raise SystemExit(f"answered {answer.status}: {said[:200]}")
    connection.close()


def wait_for(port, process):
    for _ in range(600):
        if process.poll() is not None:
            raise SystemExit(f"ended at its start: {' '.join(map(str, process.args))}")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("nobody listens")


def counted(command, port, args, folder):
    """What callgrind writes of the requests after the first ones."""
    out = folder / "callgrind.out"
    flags = ["--tool=callgrind", f"--callgrind-out-file={out}", "--instr-atstart=no", "--dump-instr=yes"]
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(["valgrind", *flags, *map(str, command)], stdout=log, stderr=log)
    try:
        wait_for(port, process)
        ask(port, WARM_UP, args.body)
        for switch, requests in (("on", args.requests), ("off", 0)):
            subprocess.run(["callgrind_control", "-i", switch, str(process.pid)], check=True, capture_output=True)
            ask(port, requests, args.body)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    return out


class Profile:
    """Instructions by address, and whose they are."""

    def __init__(self, path, requests):
        self.requests, self.costs, self.owners = requests, collections.Counter(), {}
        names, owner, address, inclusive = {}, None, 0, False
        for line in open(path, errors="replace"):
            if found := NAME.match(line):
                kind, number, name = found.groups()
                if name:
                    names[number] = name
                owner = number if kind == "fn" else owner
            elif line.startswith("calls="):
                inclusive = True  # the next line is what the callee took
            elif found := COST.match(line):
                where, cost = found.groups()
                if where != "*":
                    address = int(where, 0) if where[0] == "0" else address + int(where, 0)
                if not inclusive:
                    self.costs[address] += int(cost)
                    self.owners[address] = owner
                inclusive = False
        self.names = names

    def hot(self):
        return [address for address, cost in self.costs.items() if 2 * cost >= self.requests]

    def row(self, name):
        hot = self.hot()
        lines, pages = ({address >> bits for address in hot} for bits in (6, 12))
        instructions = sum(self.costs.values()) / self.requests
        return f"| {name} | {instructions:,.0f} | {len(lines):,} | {len(lines) // 16} | {len(pages)} |"

    def functions(self, most):
        """Those with most lines: lines, instructions a request, name."""
        lines, costs = collections.defaultdict(set), collections.Counter()
        for address in self.hot():
            lines[self.owners[address]].add(address >> 6)
        for address, cost in self.costs.items():
            costs[self.owners[address]] += cost
        first = sorted(lines, key=lambda owner: -len(lines[owner]))[:most]
        return [(len(lines[each]), costs[each] / self.requests, self.names.get(each, "?")) for each in first]


def commands(args, engine, folder):
    """Who is looked at: name, command, and where it listens."""
    api, admin, bare = free_port(), free_port(), free_port()
    config = folder / "ramjet.yaml"
    config.write_text(
        f"listen: {{ api: ['127.0.0.1:{api}'], admin: '127.0.0.1:{admin}' }}\n"
        f"fleet: {{ replicas: [{{ url: '{engine}' }}] }}\n"
        f"server: {{ threads: 1, upgrade_sock: '{folder / 'upgrade.sock'}' }}\n"
    )
    yield "ramjet", [args.bench.with_name("ramjet"), "-c", config], api
    yield "bare Pingora", [args.bench, "bare", "--listen", f"127.0.0.1:{bare}", "--upstream", engine], bare


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", type=pathlib.Path, default=ROOT / "target/release/ramjet-bench")
    parser.add_argument("--body", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--requests", type=int, default=500, help="requests that are counted")
    parser.add_argument("--functions", type=int, default=20, help="functions that are shown")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        port, folder = free_port(), pathlib.Path(folder)
        engine = subprocess.Popen([args.bench, "instant", "--listen", f"127.0.0.1:{port}"], stdout=subprocess.DEVNULL)
        try:
            wait_for(port, engine)
            profiles = []
            for name, command, listens in commands(args, f"http://127.0.0.1:{port}", folder):
                out = counted(command, listens, args, folder)
                profiles.append((name, Profile(out, args.requests)))
        finally:
            engine.kill()
            engine.wait()
    print(f"Bodies of {args.body} bytes, one connection\n\n| | instructions | lines of code | KiB | pages |\n|---|---|---|---|---|")
    for name, profile in profiles:
        print(profile.row(name))
    for name, profile in profiles:
        print(f"\n{name}: lines, instructions, function")
        for lines, instructions, function in profile.functions(args.functions):
            print(f"{lines:6} {instructions:8.0f}  {function[:120]}")


if __name__ == "__main__":
    main()
