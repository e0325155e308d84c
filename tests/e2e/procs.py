"""Processes that never outlive the test: each has its own group, ended by id, and dies with the test if that is killed."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys

PR_SET_PDEATHSIG = 1
# below those that the system chooses
PORTS = range(20_000, 32_000)
LEASES = []
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent():
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A running child whose output goes to `log`; leaving the `with` block ends it and all its descendants."""

    def __init__(self, args, log, env=None):
        self.args, self.log = [str(arg) for arg in args], log
        with open(log, "ab") as out:
            self.child = subprocess.Popen(
                self.args,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def running(self):
        return self.child.poll() is None

    def stop(self, patience=15):
        """SIGTERM to the group, then SIGKILL to what is left of it; the exit status of the leader."""
        try:
            if self.running():
                self.signal(signal.SIGTERM)
                self.child.wait(patience)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self.signal(signal.SIGKILL)
            self.child.wait()
        return self.child.returncode

    def signal(self, number):
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            pass

    def tail(self, lines=15):
        with open(self.log, errors="replace") as log:
            return "".join(log.readlines()[-lines:])


def run(args, log, env=None):
    """Run to the end; a failure shows the last lines of the log."""
    with Process(args, log, env) as process:
        if process.child.wait() != 0:
            raise RuntimeError(f"{' '.join(process.args)} failed ({process.child.returncode}):\n{process.tail()}")


def exit_on_signals():
    """SIGTERM and SIGHUP unwind like Ctrl-C does, so that every `with` block runs its exit."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def lease_ports(count):
    """Loopback ports that nobody else has as long as this process runs. The system gives out none of them to whoever asks for
    any or connects, and each lease holds a name of its port, which another test would find taken."""
    ports = []
    while len(ports) < count:
        port, held = secrets.choice(PORTS), socket.socket(socket.AF_UNIX)
        try:
            if sys.platform == "linux":
                held.bind(f"\0ramjet-port-{port}")
            with socket.socket() as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(("127.0.0.1", port))
        except OSError:
            held.close()
            continue
        LEASES.append(held)
        ports.append(port)
    return ports
