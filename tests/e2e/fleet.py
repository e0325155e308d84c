"""The processes under test: two real llama.cpp servers and ramjet in front of them."""

import contextlib
import json
import os
import re
import time
import urllib.error
import urllib.request

import procs

MODEL = "tiny"
SLOTS = 4
CONTEXT = 49152  # tokens, shared by all slots
SAMPLE = re.compile(r"^(\w[\w:]*)(\{.*\})? (\S+)$", re.M)
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback, whatever the environment says


def get(url, timeout=10):
    """(status, text); status 0 when nothing answered."""
    try:
        with OPENER.open(url, timeout=timeout) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def wait(condition, limit, pause=0.05):
    """The condition's first true value, or its last one when `limit` seconds have passed."""
    end = time.monotonic() + limit
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return value


def metrics(url):
    """A Prometheus page as {(name, labels): value}."""
    status, text = get(f"{url}/metrics")
    if status != 200:
        raise RuntimeError(f"{url}/metrics: {status} {text}")
    return {(name, labels): float(value) for name, labels, value in SAMPLE.findall(text)}


def series(page, name):
    return [value for (each, _), value in page.items() if each == name]


class Served:
    """A process that is ready when its health page says 200."""

    def __init__(self, url, process):
        self.url, self.process = url, process

    def until_ready(self, limit=60):
        if not wait(lambda: not self.process.running() or get(f"{self.url}/health")[0] == 200, limit):
            raise RuntimeError(f"not ready after {limit} s: {self.process.args[0]}\n{self.process.tail()}")
        if not self.process.running():
            raise RuntimeError(f"ended at once: {' '.join(self.process.args)}\n{self.process.tail()}")


class Engine(Served):
    def __init__(self, binary, model, port, log):
        args = f"--host 127.0.0.1 --port {port} --alias {MODEL} --offline --jinja --metrics --slots --no-warmup -t 1 -tb 1"
        args += f" -c {CONTEXT} -np {SLOTS} --kv-unified -b 256 -ub 256 --cache-prompt --cache-ram 512"
        # Attention and cache in full precision: how a prompt was cut into batches then moves a logit by some 1e-6 and
        # never an answer. Flash attention computes in half precision: 0.03, and one answer in eight differs.
        args += " -fa off -ctk f32 -ctv f32"
        super().__init__(f"http://127.0.0.1:{port}", procs.Process([binary, "-m", model, *args.split()], log))

    def counted(self, what):
        return metrics(self.url)[f"llamacpp:{what}_total", ""]

    def idle(self):
        status, text = get(f"{self.url}/slots")
        return status == 200 and not any(slot["is_processing"] for slot in json.loads(text))


class Ramjet(Served):
    def __init__(self, binary, engines, port, admin, log):
        upstream = ",".join(engine.url for engine in engines)
        args = [binary, "--upstream", upstream, "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("RJ_", "MD_", "DS4_"))}
        self.admin = f"http://127.0.0.1:{admin}"
        super().__init__(f"http://127.0.0.1:{port}", procs.Process(args, log, clean))

    def load(self):
        """Requests in flight: of ramjet, of each replica; and the load units of each replica."""
        page = metrics(self.admin)
        names = ("ramjet_requests_inflight", "ramjet_upstream_inflight", "ramjet_upstream_load_units")
        return [series(page, name) for name in names]

    def rests(self):
        return self.load() == [[0], [0, 0], [0, 0]]


@contextlib.contextmanager
def start(ramjet, llama_server, model, logs):
    """(ramjet, engines), all ready; every process is ended on the way out."""
    *engine_ports, port, admin = procs.lease_ports(4)
    with contextlib.ExitStack() as stack:
        engines = []
        for i, each in enumerate(engine_ports):
            engines.append(Engine(llama_server, model, each, logs / f"engine-{i}.log"))
            stack.enter_context(engines[-1].process)
        for engine in engines:
            engine.until_ready()
        router = Ramjet(ramjet, engines, port, admin, logs / "ramjet.log")
        stack.enter_context(router.process)
        router.until_ready()
        yield router, engines
