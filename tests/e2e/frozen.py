"""A real engine whose decode thread is held: it answers /health and /v1/models, and generates nothing.

Sessions stream through ramjet all the while. The engine must lose its traffic soon, no session may lose more than the
request that was caught, the peer answers the rest, and the engine gets its traffic back when the thread goes on.
"""

import ctypes
import http.client
import json
import os
import threading
import time

import fleet

SESSIONS = 6
CAUGHT = 1
HELD_AFTER_FENCE = 3
LIMIT = 30
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, ALL_THREADS = 0x4206, 0x4207, 17, 0x40000000


class Held:
    """The main thread of a child process, which decodes, stopped until the `with` block ends."""

    def __init__(self, pid):
        self.pid, self.libc = pid, ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.libc.ptrace.restype = ctypes.c_long

    def trace(self, request):
        if self.libc.ptrace(request, self.pid, None, None) < 0:
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")

    def __enter__(self):
        self.trace(PTRACE_SEIZE)
        self.trace(PTRACE_INTERRUPT)
        os.waitpid(self.pid, ALL_THREADS)
        return self

    def __exit__(self, *_):
        self.trace(PTRACE_DETACH)


class Session(threading.Thread):
    """Asks again and again; notes when each request began and ended, how, and where."""

    def __init__(self, number, router, stop):
        super().__init__(daemon=True)
        self.number, self.address, self.stop, self.notes = number, router.url.removeprefix("http://"), stop, []

    def run(self):
        turn = 0
        while not self.stop.is_set():
            began = time.monotonic()
            upstream, end = self.ask(turn)
            self.notes.append((began, time.monotonic(), upstream, end))
            turn += 1
            time.sleep(0.1)

    def ask(self, turn):
        text = f"session {self.number} " + "says a few words " * (20 + turn % 5)
        body = {"model": fleet.MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 16, "stream": True}
        connection, upstream = http.client.HTTPConnection(self.address, timeout=60), ""
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
            response = connection.getresponse()
            upstream = response.headers.get("x-ramjet-upstream", "")
            whole = response.status == 200 and b"data: [DONE]" in response.read()
            return upstream, "ok" if whole else f"status {response.status}"
        except (OSError, http.client.HTTPException) as error:
            return upstream, type(error).__name__
        finally:
            connection.close()


def fences(router):
    status, text = fleet.get(f"{router.url}/health")
    return [replica["fence"] for replica in json.loads(text)["replicas"]] if status in (200, 503) else []


def check(report, router, engines):
    stop = threading.Event()
    sessions = [Session(number, router, stop) for number in range(SESSIONS)]
    for session in sessions:
        session.start()
    both = lambda: {note[2] for session in sessions for note in session.notes} >= {"0", "1"}
    report.check("frozen: both replicas work before", fleet.wait(both, limit=LIMIT), "")
    with Held(engines[0].process.child.pid):
        froze = time.monotonic()
        seen = fleet.wait(lambda: fences(router)[:1] not in ([None], []), limit=LIMIT, pause=0.02)
        fenced = time.monotonic()
        figures = f"{fenced - froze:.1f} s after the thread was held, for {fences(router)}"
        report.check("frozen: fenced, its peer not", seen and fences(router)[1] is None, figures)
        time.sleep(HELD_AFTER_FENCE)
        thawed = time.monotonic()
    back = fleet.wait(lambda: fences(router) == [None, None], limit=LIMIT, pause=0.02)
    report.check("frozen: back when the thread goes on", back, f"{time.monotonic() - thawed:.1f} s")
    stop.set()
    for session in sessions:
        session.join(timeout=60)
    lost = [sum(1 for note in each.notes if note[0] < froze < note[1] and note[1] > thawed or note[3] != "ok"
                or froze <= note[0] < fenced and note[1] > thawed) for each in sessions]
    report.check("frozen: at most one request a session", max(lost) <= CAUGHT, f"{lost} waited for the end or failed")
    after = [note for each in sessions for note in each.notes if fenced + 0.2 < note[0] < thawed]
    fine = sum(1 for note in after if note[3] == "ok" and note[2] == "1" and note[1] < thawed + LIMIT)
    report.check("frozen: its peer answers the rest", fine == len(after) > 0, f"{fine} of {len(after)}")
