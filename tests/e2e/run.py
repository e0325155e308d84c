#!/usr/bin/env python3
"""Drives ramjet the way agents do: the official OpenAI SDK, streamed conversations, two real llama.cpp engines.

    tests/e2e/run.py --ramjet target/debug/ramjet

Installs what it needs once (install.py), leases its ports, ends what it started, prints one line per check.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

import fleet
import frozen
import install
import procs

TURNS = 20
LEAST_CACHED = 0.9
ANSWER_TOKENS = 24
ENDLESS_TOKENS = 40_000
SAMPLING = {"temperature": 0, "seed": 7}
WORDS = """
    allocate branch buffer cache channel client commit config cursor decode deploy error fetch fleet handle header index
    latency ledger listen merge metric module parse patch policy prefix queue reader record replica request retry router
    schema signal socket stream symbol system table thread token trace update upstream vector worker writer yield zone
""".split()


class Report:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, name, passed, figures):
        self.passed += bool(passed)
        self.failed += not passed
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {figures}", flush=True)


@dataclasses.dataclass
class Turn:
    """One request and what came back."""

    messages: list
    answer: str = ""
    finish: str = ""
    usages: list = dataclasses.field(default_factory=list)
    upstream: str = ""
    request_id: str = ""

    def read(self, headers):
        self.upstream = headers.get("x-ramjet-upstream", "")
        self.request_id = headers.get("x-ramjet-request-id", "")

    def whole(self):
        """One usage, one finish, and as many letters as the engine says it generated (a token is a byte)."""
        return self.finish == "length" and [u.completion_tokens for u in self.usages] == [len(self.answer)]

    def prompt(self):
        return sum(usage.prompt_tokens for usage in self.usages)

    def cached(self):
        return sum(usage.prompt_tokens_details.cached_tokens for usage in self.usages if usage.prompt_tokens_details)


def sdk(url):
    import openai  # only in the environment that install.py made

    client = openai.DefaultHttpxClient(trust_env=False)
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120, http_client=client)


def ask_streamed(client, messages):
    turn = Turn(messages)
    with client.chat.completions.with_streaming_response.create(
        model=fleet.MODEL,
        messages=messages,
        max_tokens=ANSWER_TOKENS,
        stream=True,
        stream_options={"include_usage": True},
        **SAMPLING,
    ) as response:
        turn.read(response.headers)
        for chunk in response.parse():
            if chunk.usage:
                turn.usages.append(chunk.usage)
            for choice in chunk.choices:
                turn.answer += choice.delta.content or ""
                turn.finish += choice.finish_reason or ""
    return turn


def ask_whole(client, messages):
    turn = Turn(messages)
    response = client.chat.completions.with_raw_response.create(
        model=fleet.MODEL, messages=messages, max_tokens=ANSWER_TOKENS, **SAMPLING
    )
    turn.read(response.headers)
    completion = response.parse()
    turn.answer, turn.finish = completion.choices[0].message.content, completion.choices[0].finish_reason
    turn.usages.append(completion.usage)
    return turn


def prose(rng, size):
    text = ""
    while len(text) < size:
        text += f"{rng.choice(WORDS)}{rng.choice([' ', ' ', ' ', ', ', ': ', chr(10)])}"
    return text


class Conversation:
    """An agent at work: each turn sends all that was said, the real answers among it, and something new."""

    def __init__(self, name, system_bytes, message_bytes):
        self.name, self.message_bytes, self.rng, self.turns = name, message_bytes, random.Random(name), []
        tools = "\n".join(f"tool {word}: {prose(self.rng, 300)}" for word in self.rng.sample(WORDS, 30))
        self.messages = [{"role": "system", "content": f"You are {name}.\n{tools}"[:system_bytes]}]

    def step(self, client):
        number = len(self.turns)
        said = {"content": prose(self.rng, self.rng.randint(*self.message_bytes))}
        said |= {"role": "tool", "tool_call_id": f"call_{number}"} if number % 2 else {"role": "user"}
        self.messages.append(said)
        turn = ask_streamed(client, list(self.messages))
        self.turns.append(turn)
        self.messages.append({"role": "assistant", "content": turn.answer})

    def run(self, client):
        while len(self.turns) < TURNS:
            self.step(client)

    def replicas(self):
        return {turn.upstream for turn in self.turns}

    def check(self, report, engine):
        later = self.turns[1:]
        prompt, cached = sum(turn.prompt() for turn in later), sum(turn.cached() for turn in later)
        share = cached / max(prompt, 1)
        report.check(f"{self.name}: prompt cached", share >= LEAST_CACHED, f"{share:.1%} of {prompt} tokens")
        upstreams = self.replicas()
        sticks = len(upstreams) == 1 and "" not in upstreams
        report.check(f"{self.name}: one replica", sticks, " ".join(turn.upstream or "none" for turn in self.turns))
        whole = sum(turn.whole() for turn in self.turns)
        report.check(f"{self.name}: streams whole", whole == TURNS, f"{whole} of {TURNS}")
        same = same_as_direct(self.turns, engine)
        report.check(f"{self.name}: answers as the engine's", same == TURNS, f"{same} of {TURNS}")


def same_as_direct(turns, engine):
    """How many answers the engine gives again when it is asked without ramjet between, not streamed.

    Asked from the last turn to the first: each is then a prefix of what the engine already holds.
    """
    client = sdk(engine.url)
    return sum(ask_whole(client, turn.messages).answer == turn.answer for turn in reversed(turns))


def agent(report, client, engines):
    """One long conversation. Learns, and returns, which engine each replica's number means."""
    conversation = Conversation("agent", 8192, (512, 1024))
    before = [engine.counted("prompt_tokens") for engine in engines]
    conversation.run(client)
    read = [engine.counted("prompt_tokens") - count for engine, count in zip(engines, before)]
    served = engines[read.index(max(read))]
    new = sum(turn.prompt() - turn.cached() for turn in conversation.turns)
    figures = f"{new} new tokens reported, {' and '.join(str(int(count)) for count in read)} read by the engines"
    report.check("agent: only one engine worked", min(read) < max(read) / 10 and max(read) >= new, figures)
    conversation.check(report, served)
    return conversation, served


def together(jobs):
    """The results of functions that are called at the same moment."""
    gate = threading.Barrier(len(jobs))

    def start(job):
        gate.wait()
        return job()

    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(start, jobs))


def interleaved(report, client, ramjet, engine_of):
    """Three conversations that begin at the same moment, so that load spreads them, and then take turns.

    Not side by side all the way: prompts as short as these are worth less than one running request on their replica,
    so a busy one would rightly lose them. For the same reason each turn waits until the load of the last one is gone.
    """
    conversations = [Conversation(f"agent {letter}", 3072, (200, 400)) for letter in "abc"]
    together([lambda each=each: each.step(client) for each in conversations])
    for _ in range(1, TURNS):
        for each in conversations:
            fleet.wait(ramjet.rests, limit=10)
            each.step(client)
    used = set.union(*(each.replicas() for each in conversations))
    report.check("interleaved: both replicas used", len(used) == 2, " ".join(sorted(used)))
    for each in conversations:
        each.check(report, engine_of(each.turns[0].upstream))
    return conversations


def side_by_side(report, client, engine_of):
    """Streams at the same moment, as many as the fleet has slots: none may get a piece of another's answer."""
    prompts = [[{"role": "user", "content": f"{word}?"}] for word in WORDS[: 2 * fleet.SLOTS]]
    turns = together([lambda messages=messages: ask_streamed(client, messages) for messages in prompts])
    whole = sum(turn.whole() for turn in turns)
    same = sum(same_as_direct([turn], engine_of(turn.upstream)) for turn in turns)
    figures = f"{whole} whole and {same} as the engine's of {len(turns)}"
    report.check("side by side: answers as the engine's", whole == same == len(turns), figures)
    return turns


def not_streamed(report, client, engine_of):
    messages = [{"role": "user", "content": "Say it all at once."}]
    turn = ask_whole(client, messages)
    same = turn.whole() and same_as_direct([turn], engine_of(turn.upstream)) == 1
    report.check("not streamed: answer as the engine's", same, json.dumps(turn.answer))
    return turn


def client_leaves(report, client, engine_of):
    """A client that hangs up after a few tokens of a very long answer must not keep its engine busy."""
    messages = [{"role": "user", "content": "Never stop talking."}]
    with client.chat.completions.with_streaming_response.create(
        model=fleet.MODEL, messages=messages, max_tokens=ENDLESS_TOKENS, stream=True, **SAMPLING
    ) as response:
        turn = Turn(messages)
        turn.read(response.headers)
        engine = engine_of(turn.upstream)
        generated = engine.counted("tokens_predicted")
        for _, chunk in zip(range(5), response.parse()):
            turn.answer += chunk.choices[0].delta.content or ""
        busy = not engine.idle()
    left = time.monotonic()
    # llama.cpp looks after its clients once a second, unless it is asked for its state more often than that
    idle = fleet.wait(engine.idle, limit=10, pause=1.5)
    seconds = time.monotonic() - left
    generated = int(engine.counted("tokens_predicted") - generated)
    figures = f"busy while streaming: {busy}, idle {seconds:.1f} s later, {generated} of {ENDLESS_TOKENS} tokens generated"
    report.check("client leaves: engine stops", busy and idle and generated < ENDLESS_TOKENS, figures)
    return turn


def at_rest(report, ramjet, turns):
    """After all that: nothing in flight, no load kept, ramjet alive and counting; and it ends when told to."""
    ids = [turn.request_id for turn in turns]
    report.check("request ids: present and distinct", all(ids) and len(set(ids)) == len(ids), f"{len(set(ids))} of {len(ids)}")
    rests = fleet.wait(ramjet.rests, limit=10)
    figures = "{} requests, {} at the replicas, {} load units".format(*ramjet.load())
    report.check("metrics: nothing left in flight", rests, figures)
    counted = sum(fleet.series(fleet.metrics(ramjet.admin), "ramjet_cached_prompt_tokens_total"))
    reported = sum(turn.cached() for turn in turns)
    figures = f"{int(counted)}, {reported} reported to the client"
    report.check("metrics: cached tokens counted", counted == reported > 0, figures)
    status, text = fleet.get(f"{ramjet.url}/health")
    report.check("health: ok at the end", ramjet.process.running() and status == 200, f"{status} {text.strip()[:60]}")
    asked = time.monotonic()
    code = ramjet.process.stop(patience=30)
    report.check("SIGTERM: exits with 0", code == 0, f"{code} after {time.monotonic() - asked:.1f} s")


def scenarios(report, ramjet, engines):
    client = sdk(ramjet.url)
    conversation, served = agent(report, client, engines)
    other = engines[1 - engines.index(served)]

    def engine_of(upstream):
        return served if upstream in conversation.replicas() else other

    conversations = [conversation, *interleaved(report, client, ramjet, engine_of)]
    turns = [turn for each in conversations for turn in each.turns]
    turns += side_by_side(report, client, engine_of)
    turns.append(not_streamed(report, client, engine_of))
    turns.append(client_leaves(report, client, engine_of))
    at_rest(report, ramjet, turns)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ramjet", required=True, type=pathlib.Path, help="the binary to test")
    ramjet = parser.parse_args().ramjet.resolve()
    procs.exit_on_signals()
    llama_server, model, python = install.llama_server(), install.model(), install.client_python()
    if pathlib.Path(sys.prefix) != python.parent.parent:
        os.execv(python, [python, *sys.argv])
    report, logs = Report(), pathlib.Path(tempfile.mkdtemp(prefix="ramjet-e2e-"))
    try:
        with fleet.start(ramjet, llama_server, model, logs) as (router, engines):
            scenarios(report, router, engines)
        with fleet.start(ramjet, llama_server, model, logs) as (router, engines):
            frozen.check(report, router, engines)
    except Exception as error:
        report.check("ran to the end", False, f"{type(error).__name__}: {error}")
    finally:
        if report.failed:
            print(f"logs: {logs}")
        else:
            shutil.rmtree(logs)
    print(f"{report.passed} passed, {report.failed} failed")
    return report.failed > 0


if __name__ == "__main__":
    sys.exit(main())
