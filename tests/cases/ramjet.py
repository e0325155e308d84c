"""ramjet as a process under test: its configuration from a case's abstract one, its start, its log, its memory."""

import asyncio
import hashlib
import json
import os
import re
import signal
import socket
import tempfile

import procs
from client import send
from wire import now

READY_TIMEOUT = 7  # seconds until a started process must be ready
INFLIGHT = "ramjet_upstream_inflight"
# what a case's abstract option becomes; "" is handled in `config`
OPTIONS = {
    "stream_idle_timeout": "timeouts.idle_read",
    "first_byte_timeout": "timeouts.first_byte",
    "max_body": "limits.body",
    "model_aliases": "compat.model_aliases",
    "context_margin": "compat.context_margin",
    "health_interval": "health.readiness.interval",
    "health_timeout": "health.readiness.timeout",
    "engine_keepalive_hint": "timeouts.pool_idle",
    "cors_allow_origins": "cors.origins",
    "engine_api_key": "",
    "client_keys": "",
    # ramjet's default, or nothing to configure
    "policy": "",
    "workers": "",
    "session_hints": "",
}


def free_port(host="127.0.0.1"):
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def seconds(text):
    m = re.fullmatch(r"([\d.]+)(ms|s)", text)
    return float(m.group(1)) / (1000 if m.group(2) == "ms" else 1)


def probe_round(cfg):
    """Long enough for a changed engine to be noticed: two good probes and two seconds."""
    return 2 * seconds(cfg.get("health_interval", "5s")) + 2


class Spec:
    """What a case wants started: `workers` in a file, or else only what stands in `args` and `env`."""

    def __init__(self, workers, cfg, host="127.0.0.1", port=None, admin=None, **more):
        self.workers, self.cfg, self.host = workers, cfg, host
        self.port, self.admin = port or free_port(host), admin or free_port()
        self.args, self.env = list(more.get("args", ())), dict(more.get("env", {}))
        self.text, self.file = more.get("text"), more.get("file")
        self.debug, self.hosts = more.get("debug", False), more.get("hosts")


def config(spec, folder):
    """The configuration as an object; JSON is YAML."""
    listen = f"[{spec.host}]:{spec.port}" if ":" in spec.host else f"{spec.host}:{spec.port}"
    replicas = [{"name": f"e{i}", "url": url} for i, url in enumerate(spec.workers, 1)]
    out = {"listen": {"api": [listen], "admin": f"127.0.0.1:{spec.admin}"}, "fleet": {"replicas": replicas}}
    if unknown := spec.cfg.keys() - OPTIONS.keys():
        raise ValueError(f"no setting stands for {', '.join(sorted(unknown))}")
    for key, value in spec.cfg.items():
        if key == "engine_api_key":
            for replica in replicas:
                replica["api_key_env"] = "ENGINE_KEY"
        elif key == "client_keys":
            out["auth"] = {"keys_file": os.path.join(folder, "keys")}
            with open(out["auth"]["keys_file"], "w") as f:
                digests = (hashlib.sha256(k.encode()).hexdigest() for k in value)
                f.writelines(f"client{i}: {digest}\n" for i, digest in enumerate(digests, 1))
        elif OPTIONS[key]:
            *path, last = OPTIONS[key].split(".")
            section = out
            for name in path:
                section = section.setdefault(name, {})
            if key == "engine_keepalive_hint":
                value = f"{int(seconds(value) * 800)}ms"
            section[last] = value.replace("MB", "MiB") if key == "max_body" else value
    return out


def broken_config(kind, spec):
    """Wrong files for the cases about starting."""
    api, url = f"{spec.host}:{spec.port}", spec.workers[0]
    good = (
        f'listen:\n  api: ["{api}"]\n  admin: "127.0.0.1:{spec.admin}"\n'
        f"fleet:\n  replicas:\n    - name: a\n      url: {url}\n"
    )
    return {
        "unknown": good + "wrokers: []\n",
        "typo": good.replace("      url:", "      ulr:"),
        "column": good.replace("    - name: a\n      url:", "    []\nname: a\nulr:"),
        "broken": good.replace('  admin: "', '\tadmin: "'),
        "duplicate": good.replace("      url:", f"      url: {url}\n      url:"),
        "types": good.replace(f"{api}", f"{spec.host}:abc") + "timeouts: {connect: -1, first_byte: 10}\n",
    }[kind]


class Process:
    """A running ramjet."""

    def __init__(self, binary, spec):
        self.binary, self.spec = binary, spec
        self.dir = tempfile.TemporaryDirectory(prefix="ramjet-case-")
        self.addr = (spec.host if spec.host != "::" else "::1", spec.port)
        self.peak, self.base, self.samples = 0, 0, []

    def command(self):
        spec = self.spec
        if spec.workers is None:
            listen = ["--listen", f"{spec.host}:{spec.port}", "--admin", f"127.0.0.1:{spec.admin}"]
            return [self.binary, *listen, *spec.args]
        path = spec.file or os.path.join(self.dir.name, "ramjet.yaml")
        if not spec.file:
            with open(path, "w") as f:
                f.write(spec.text if spec.text is not None else json.dumps(config(spec, self.dir.name), indent=1))
        return [self.binary, "-c", path, *spec.args]

    async def spawn(self):
        argv, spec = self.command(), self.spec
        env = {"ENGINE_KEY": spec.cfg.get("engine_api_key", ""), "RUST_LOG": "debug" if spec.debug else "info"}
        if spec.hosts:  # a private /etc/hosts, in a mount namespace of its own
            bind = 'mount --bind "$0" /etc/hosts && exec "$@"'
            argv = ["unshare", "-m", "sh", "-c", bind, spec.hosts, *argv]
        self.log_path = os.path.join(self.dir.name, "log.txt")
        with open(self.log_path, "wb") as log:
            self.proc = await asyncio.create_subprocess_exec(
                *argv,
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                cwd=self.dir.name,
                env={**os.environ, **env, **spec.env},
                start_new_session=True,
                preexec_fn=procs.die_with_parent,
            )
        self.t_spawn = now()

    @property
    def rc(self):
        return self.proc.returncode

    async def ready(self, alive=True):
        """Waits until it serves, if `alive` until it calls itself ready; returns seconds, None if it never answered."""
        heard = None
        while now() - self.t_spawn < READY_TIMEOUT and self.rc is None:
            r = await self.get("/health")
            if r.status == 200:
                return now() - self.t_spawn
            heard = heard or (now() if r.status else None)
            if heard and now() - heard > (3 if alive else 1.5):
                break
            await asyncio.sleep(0.03)
        return heard and heard - self.t_spawn

    async def get(self, path, port=None, timeout=3):
        request = {"method": "GET", "path": path, "http": "1.1", "headers": {}}
        return await send(request, b"", (self.addr[0] if port is None else "127.0.0.1", port or self.addr[1]), timeout)

    async def metrics(self):
        r = await self.get("/metrics", self.spec.admin)
        return r.text if r.status == 200 else ""

    async def inflight(self):
        """{labels: requests in flight at a replica, by ramjet's own account}."""
        found = re.findall(rf"^{INFLIGHT}(?:\{{([^}}]*)\}})? ([\d.e+-]+)", await self.metrics(), re.M)
        return {labels: float(v) for labels, v in found}

    def log(self):
        with open(self.log_path, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def rss(self):
        """Bytes of resident memory."""
        try:
            with open(f"/proc/{self.proc.pid}/status") as f:
                return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1)) * 1024
        except (OSError, AttributeError):
            return 0

    async def watch(self):
        self.base = self.peak = self.rss()
        while self.rc is None:
            v = self.rss()
            self.peak = max(self.peak, v)
            self.samples.append((now(), v))
            await asyncio.sleep(0.05)

    async def stop(self):
        for sig, wait in ((signal.SIGINT, 2), (signal.SIGKILL, 5)):
            if self.rc is None:
                self.proc.send_signal(sig)
                try:
                    await asyncio.wait_for(self.proc.wait(), wait)
                except asyncio.TimeoutError:
                    pass
        self.dir.cleanup()
