#!/usr/bin/env python3
"""Simulated engines that speak both dialects, tools included, and do what the first words of a conversation say.

    engine.py PORT ...

They listen on one port each and remember together: what is asked of one again may be asked of another. They report the
same tokens of every prompt, or, where they are to be truthful, what they have read before.

The first user message is "SCENE TAG". Under its tag a conversation is remembered: `GET /_seen/TAG` tells what came and
what of it is still running, `POST /_go/TAG` lets a stream go on that waits for it.

| scene | what happens |
|---|---|
| chat | one answer, in pieces if it is to be streamed |
| held | a stream that goes on after its first piece when it is told to |
| tools | a tool call; with its result in the conversation, a text about it |
| endless | a stream that ends when the client leaves |
| failing | a stream that turns into an error |
| cut | a stream whose connection ends in the middle |
| status-N | an error |
| once-N | the same once, with a time to come back; then an answer |
"""

import asyncio
import contextlib
import copy
import json
import sys

from dialects import DIALECTS, MODEL, TEXT, Cache

LISTED = {"id": MODEL, "object": "model", "created": 1700000000, "owned_by": "vllm", "max_model_len": 32768}
PATIENCE = 30  # seconds until a held stream gives up
PIECES = 5


class Conversation:
    """What is known under a tag."""

    def __init__(self):
        self.requests, self.running, self.left = [], 0, 0
        self.go = asyncio.Event()


class Engines:
    def __init__(self, cache=None):
        self.conversations, self.cache = {}, cache

    def of(self, tag):
        return self.conversations.setdefault(tag, Conversation())

    async def serve(self, reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while await self.one(reader, writer):
                pass
        writer.close()

    async def one(self, reader, writer):
        """One request; whether the connection goes on."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *fields = head.split("\r\n")[:-2]
        method, path, _ = line.split(" ")
        headers = {k.lower(): v.strip() for k, v in (field.split(":", 1) for field in fields)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path, _, query = path.partition("?")
        if path.startswith("/_"):
            return await self.control(path, writer)
        if method == "GET":
            known = path == "/v1/models"
            listed = {"object": "list", "data": [LISTED]} if known else {}
            return await answer(writer, 200 if known else 404, json.dumps(listed))
        dialect = DIALECTS.get(path) or DIALECTS["/v1/chat/completions"]
        body = json.loads(body)
        if "user-agent" in headers and headers["user-agent"].startswith("ramjet-probe"):
            return await answer(writer, 200, dialect.whole("x"))
        scene, tag = words(body)
        if self.cache:
            dialect = copy.copy(dialect)
            dialect.counts = self.cache.read(json.dumps(body["messages"]))
        talk = self.of(tag)
        talk.requests.append({"path": path, "query": query, "headers": headers, "body": body})
        return await self.play(scene, talk, dialect, body, reader, writer)

    async def control(self, path, writer):
        _, verb, tag = path.split("/")
        talk = self.of(tag)
        if verb == "_go":
            talk.go.set()
        seen = {"requests": talk.requests, "running": talk.running, "left": talk.left}
        return await answer(writer, 200, json.dumps(seen))

    async def play(self, scene, talk, dialect, body, reader, writer):
        name, _, status = scene.partition("-")
        if name == "status" or name == "once" and len(talk.requests) == 1:
            come = "retry-after: 1\r\n" if name == "once" else ""
            return await answer(writer, int(status), dialect.error(int(status), f"the engine says {status}"), come)
        if name == "tools" and body.get("tools"):
            result = dialect.result(body)
            tool = body["tools"][0]
            call = tool.get("name") or tool["function"]["name"]
            events = dialect.call(call) if result is None else text_events(dialect, f"It is {result}.")
            whole = dialect.whole(call=call) if result is None else dialect.whole(f"It is {result}.")
        else:
            events, whole = text_events(dialect, TEXT), dialect.whole(TEXT)
        if not body.get("stream"):
            return await answer(writer, 200, whole)
        stream = {"held": self.held, "endless": self.endless, "failing": self.failing, "cut": self.cut}.get(name)
        talk.running += 1
        try:
            await begin(writer)
            if stream:
                return await stream(talk, dialect, events, reader, writer)
            for event in events:
                await chunk(writer, event)
            await chunk(writer, "")
            return True
        except ConnectionError:
            talk.left += 1
            raise
        finally:
            talk.running -= 1

    async def held(self, talk, _dialect, events, _reader, writer):
        for event in events[:2]:
            await chunk(writer, event)
        await asyncio.wait_for(talk.go.wait(), PATIENCE)
        for event in events[2:]:
            await chunk(writer, event)
        await chunk(writer, "")
        return True

    async def endless(self, _talk, dialect, _events, reader, writer):
        await chunk(writer, dialect.begin())
        gone = asyncio.ensure_future(reader.read(1))
        while not gone.done():
            await chunk(writer, dialect.piece("x "))
            await asyncio.wait([gone], timeout=0.01)
        raise ConnectionResetError("the client has left")

    async def failing(self, _talk, dialect, events, _reader, writer):
        for event in [*events[:2], *dialect.failure("out of memory")]:
            await chunk(writer, event)
        await chunk(writer, "")
        return True

    async def cut(self, _talk, _dialect, events, _reader, writer):
        for event in events[:2]:
            await chunk(writer, event)
        return False


def words(body):
    """Scene and tag of a conversation."""
    for message in body.get("messages", []):
        if message["role"] == "user":
            content = message["content"]
            text = content if isinstance(content, str) else content[0].get("text", "")
            return text.split(" ")[:2] if " " in text else (text, "")
    return "", ""


def text_events(dialect, text):
    step = -(-len(text) // PIECES)
    pieces = [dialect.piece(text[at : at + step]) for at in range(0, len(text), step)]
    return [dialect.begin(), *pieces, *dialect.end()]


async def answer(writer, status, text, fields=""):
    body = text.encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{fields}content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return True


async def begin(writer):
    kind = "content-type: text/event-stream; charset=utf-8"
    writer.write(f"HTTP/1.1 200 OK\r\n{kind}\r\ntransfer-encoding: chunked\r\n\r\n".encode())
    await writer.drain()


async def chunk(writer, text):
    data = text.encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


async def main(ports, truthful=False):
    engines = Engines(Cache() if truthful else None)
    servers = [await asyncio.start_server(engines.serve, "127.0.0.1", port, limit=1 << 24) for port in ports]
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(main([int(port) for port in sys.argv[1:]]))
