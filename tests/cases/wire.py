"""One TCP connection with exact control: what was read, when, and how it ended. Used by both ends."""

import asyncio
import os
import socket
import struct
import time

now = time.monotonic


class Gone(Exception):
    """The peer closed or reset the connection before the bytes we waited for."""


class Wire(asyncio.Protocol):
    def __init__(self, on_connect=None):
        self.buf = bytearray()
        self.reads = []  # (time, total bytes read so far)
        self.total = 0
        self.t_eof = self.t_lost = None
        self.reset = False  # ended by RST (or another socket error), not by FIN
        self.gone = asyncio.Event()
        self._data = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._on_connect = on_connect

    # asyncio.Protocol
    def connection_made(self, transport):
        self.tr = transport
        transport.set_write_buffer_limits(high=0)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._on_connect:
            self._on_connect(self)

    def data_received(self, data):
        self.total += len(data)
        self.reads.append((now(), self.total))
        self.buf += data
        self._data.set()

    def eof_received(self):
        self.t_eof = now()
        self._ended()
        return True  # half-open: we still may write

    def connection_lost(self, exc):
        self.t_lost = now()
        if exc is not None:
            self.reset = True
            self._rest()
        self._ended()
        self._room.set()

    def _rest(self):
        """A failed write must not lose what the peer had sent before: read the rest as a blocking client would."""
        try:
            with socket.socket(fileno=os.dup(self.tr.get_extra_info("socket").fileno())) as sock:
                sock.setblocking(False)
                while data := sock.recv(1 << 16):
                    self.data_received(data)
        except OSError:
            pass

    def _ended(self):
        self.gone.set()
        self._data.set()

    def pause_writing(self):
        self._room.clear()

    def resume_writing(self):
        self._room.set()

    # reading
    @property
    def t_gone(self):
        times = [t for t in (self.t_eof, self.t_lost) if t is not None]
        return min(times) if times else None

    async def more(self, timeout=None):
        """Waits until the buffer grows; Gone at the end of the stream."""
        size = self.total
        while self.total == size:
            if self.gone.is_set():
                raise Gone
            self._data.clear()
            await asyncio.wait_for(self._data.wait(), timeout)

    async def until(self, sep, timeout=None, limit=1 << 20):
        while True:
            i = self.buf.find(sep)
            if i >= 0:
                out = bytes(self.buf[: i + len(sep)])
                del self.buf[: i + len(sep)]
                return out
            if len(self.buf) > limit:
                raise Gone
            await self.more(timeout)

    async def take(self, n=None, timeout=None):
        """Between 1 and n bytes (all there is if n is None)."""
        while not self.buf:
            await self.more(timeout)
        out = bytes(self.buf[:n])
        del self.buf[:n]
        return out

    async def exactly(self, n, timeout=None):
        while len(self.buf) < n:
            await self.more(timeout)
        out = bytes(self.buf[:n])
        del self.buf[:n]
        return out

    # writing
    async def send(self, data):
        if self.t_lost is not None or self.tr.is_closing():
            raise Gone
        self.tr.write(data)
        await self._room.wait()
        if self.t_lost is not None:
            raise Gone

    def fin(self):
        if self.t_lost is None and self.tr.can_write_eof():
            try:
                self.tr.write_eof()
            except OSError:
                pass

    def close(self):
        self.tr.close()

    def rst(self):
        sock = self.tr.get_extra_info("socket")
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.tr.abort()


async def connect(host, port, timeout=5):
    loop = asyncio.get_running_loop()
    _, wire = await asyncio.wait_for(loop.create_connection(Wire, host, port), timeout)
    return wire


async def read_body(wire, headers, to_eof, sink, timeout=None):
    """Reads a message body into sink(bytes); returns (framing, trailers). Gone if it is cut short."""
    te = [v.lower() for k, v in headers if k.lower() == "transfer-encoding"]
    cl = [v for k, v in headers if k.lower() == "content-length"]
    framing = "both" if te and cl else "chunked" if te else "content-length" if cl else "none"
    trailers = []
    if te and "chunked" in te[-1]:
        while True:
            line = await wire.until(b"\r\n", timeout)
            left = int(line.split(b";")[0].strip() or b"x", 16)
            if left == 0:
                break
            while left:
                part = await wire.take(left, timeout)
                sink(part)
                left -= len(part)
            if await wire.exactly(2, timeout) != b"\r\n":
                raise ValueError("chunk not followed by CRLF")
        while (line := await wire.until(b"\r\n", timeout)) != b"\r\n":
            k, _, v = line.decode("latin-1").partition(":")
            trailers.append((k, v.strip()))
    elif cl:
        left = int(cl[0])
        while left:
            part = await wire.take(left, timeout)
            sink(part)
            left -= len(part)
    elif to_eof:
        framing = "close"
        try:
            while True:
                sink(await wire.take(None, timeout))
        except Gone:
            if wire.reset:
                raise
    return framing, trailers


def parse_head(raw):
    lines = raw.decode("latin-1").split("\r\n")
    headers = []
    for line in lines[1:]:
        if line:
            k, _, v = line.partition(":")
            headers.append((k, v.strip()))
    return lines[0], headers


def get(headers, name):
    """All values of a header, in order."""
    return [v for k, v in headers if k.lower() == name.lower()]


class Body:
    """Bytes of a body: all of a small one, digest and length of any."""

    KEEP = 4 << 20

    def __init__(self):
        import hashlib

        self.sha = hashlib.sha256()
        self.n = 0
        self.data = bytearray()

    def add(self, part):
        self.sha.update(part)
        self.n += len(part)
        if len(self.data) < self.KEEP:
            self.data += part

    def same(self, other):
        return self.n == other.n and self.sha.digest() == other.sha.digest()

    @classmethod
    def of(cls, data):
        body = cls()
        body.add(data)
        return body
