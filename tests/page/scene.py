"""A stage for what looks at ramjet from outside: simulated engines, the router in front of them, and some requests.

The engines are those of tests/clients; the name of the model that they list is chosen here, so that a page can be shown
a hostile one.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "clients"), str(HERE.parent / "e2e")]

import dialects
import engine
import fleet
import procs

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback, whatever the environment says


def listen(model, port, truthful):
    """Serves as an engine of a model until the process ends."""
    dialects.MODEL = engine.MODEL = model
    engine.LISTED["id"] = model
    asyncio.run(engine.main([port], truthful))


def end(process):
    """Ends a process that is no child of this one."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
        if fleet.wait(lambda: not pathlib.Path(f"/proc/{process}").exists(), 10):
            return


class Stage:
    """The engines by name, each a process of its own, and the router."""

    def __init__(self, ramjet, logs, model, names, truthful=False):
        self.ramjet, self.logs, self.model, self.truthful = ramjet, logs, model, truthful
        self.stack = contextlib.ExitStack()
        *ports, self.port, self.admin_port = procs.lease_ports(len(names) + 2)
        self.ports = dict(zip(names, ports))
        self.engines = {}
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("RJ_", "MD_", "DS4_"))}
        self.url, self.admin = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.admin_port}"

    def __enter__(self):
        for name in self.ports:
            self.start_engine(name)
        for port in self.ports.values():
            if not fleet.wait(lambda port=port: fleet.get(f"http://127.0.0.1:{port}/v1/models")[0] == 200, 30):
                raise RuntimeError("the simulated engines do not answer")
        config = self.logs / "ramjet.yaml"
        replicas = [{"name": name, "url": f"http://127.0.0.1:{port}"} for name, port in self.ports.items()]
        config.write_text(
            json.dumps(
                {
                    "listen": {"api": [f"127.0.0.1:{self.port}"], "admin": f"127.0.0.1:{self.admin_port}"},
                    "fleet": {"replicas": replicas},
                    "health": {"readiness": {"interval": "300ms"}},
                    "server": {"upgrade_sock": str(self.logs / "upgrade.sock")},
                }
            )
        )
        served = fleet.Served(self.url, procs.Process([self.ramjet, "-c", config], self.logs / "ramjet.log", self.env))
        self.router = self.stack.enter_context(served.process)
        served.until_ready()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def start_engine(self, name):
        args = [sys.executable, __file__, self.model, self.ports[name], "truthful" if self.truthful else "constant"]
        self.engines[name] = self.stack.enter_context(procs.Process(args, self.logs / f"{name}.log"))

    def stop_engine(self, name):
        self.engines[name].stop()

    def have(self, what, name):
        """Something happens to an engine or to the router."""
        match what:
            case "stop":
                self.stop_engine(name)
            case "start":
                self.start_engine(name)
            case "freeze":
                self.router.signal(signal.SIGSTOP)
            case "thaw":
                self.router.signal(signal.SIGCONT)
            case "upgrade":
                self.upgrade()

    def upgrade(self):
        """Another process follows; it is ended with the stage."""
        args, said = [self.ramjet, "upgrade", "-c", self.logs / "ramjet.yaml"], self.logs / "upgrade.log"
        with open(said, "wb") as log:  # a file: the successor inherits it and lives on
            subprocess.run(args, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=60, env=self.env)
        process = re.search(r"\(process (\d+)\)", said.read_text())
        if not process:
            raise RuntimeError(f"no upgrade: {said.read_text()}")
        self.stack.callback(end, int(process[1]))

    def ask(self, text, system="You are short. " * 800, stream=True):
        """The status of a chat."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": text}]
        body = json.dumps({"model": self.model, "stream": stream, "messages": messages}).encode()
        fields = {"content-type": "application/json", "x-session-id": text.split(" ")[-1]}
        asked = urllib.request.Request(f"{self.url}/v1/chat/completions", body, fields)
        try:
            with OPENER.open(asked, timeout=30) as answer:
                answer.read()
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code

    @contextlib.contextmanager
    def load(self, pause=0.15):
        """Requests one after the other, of a few sessions, until the block ends."""
        over = threading.Event()

        def ask():
            n = 0
            while not over.is_set():
                self.ask(f"chat s{n % 5}", stream=n % 4 > 0)
                n += 1
                time.sleep(pause)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(10)


if __name__ == "__main__":
    listen(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "truthful")
