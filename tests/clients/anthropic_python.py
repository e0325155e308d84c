"""The official Anthropic SDK for Python: another dialect, other events, other errors, its key in `x-api-key`."""

import json
import time

import anthropic
from dialects import ARGUMENTS, CACHED_TOKENS, COMPLETION_TOKENS, MODEL, PROMPT_TOKENS, TEXT
from scene import WEATHER, Stage, check, raises, same

STAGE = Stage()
TOOLS = [{"name": "get_weather", "description": "?", "input_schema": WEATHER}]


def client(url, **more):
    return anthropic.Anthropic(**{"base_url": url, "api_key": STAGE.key, "max_retries": 0, "timeout": 60, **more})


SIMULATED, LLAMA = client(STAGE.ramjet), client(STAGE.ramjet_llama)


def said(scene, tag):
    messages = [{"role": "user", "content": f"{scene} {tag}"}]
    return {"model": MODEL, "max_tokens": 64, "system": "Be brief.", "messages": messages}


def ask(scene, via=SIMULATED, **more):
    return via.messages.create(**{**said(scene, STAGE.tag()), **more})


def chat():
    with check("chat"):
        tag = STAGE.tag()
        answer = SIMULATED.messages.create(**said("chat", tag))
        same((answer.content[0].text, answer.stop_reason), (TEXT, "end_turn"))
        same(answer.usage.cache_read_input_tokens, CACHED_TOKENS)
        same(answer.usage.input_tokens, PROMPT_TOKENS - CACHED_TOKENS)
        (seen,) = STAGE.requests(tag)
        same((seen["path"], seen["body"]), ("/v1/messages", said("chat", tag)))
        same(seen["headers"].get("x-api-key"), None)
        same(seen["headers"]["authorization"], f"Bearer {STAGE.engine_key}")
        assert seen["headers"]["anthropic-version"]


def streaming():
    with check("a stream, as it is made"):
        tag, texts = STAGE.tag(), []
        with SIMULATED.messages.stream(**said("held", tag)) as stream:
            for text in stream.text_stream:
                texts.append(text)
                if len(texts) == 1:
                    STAGE.go(tag)  # the engine says no more until the first piece is here
            final = stream.get_final_message()
        same(("".join(texts), final.content[0].text, final.stop_reason), (TEXT, TEXT, "end_turn"))
        same(final.usage.output_tokens, COMPLETION_TOKENS)
    with check("events keep their names"):
        names = {event.type for event in ask("chat", stream=True)}
        wanted = {"message_start", "content_block_start", "content_block_delta", "content_block_stop"}
        assert wanted | {"message_delta", "message_stop"} <= names, names


def tools():
    with check("tools: called, answered, used"):
        tag = STAGE.tag()
        request = {**said("tools", tag), "tools": TOOLS}
        answer = SIMULATED.messages.create(**request)
        (use,) = answer.content
        same((answer.stop_reason, use.name, use.input), ("tool_use", "get_weather", json.loads(ARGUMENTS)))
        result = {"type": "tool_result", "tool_use_id": use.id, "content": 'so ist es: "nass"'}
        turn = [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        answer = SIMULATED.messages.create(**{**request, "messages": request["messages"] + turn})
        same(answer.content[0].text, 'It is so ist es: "nass".')
        same(STAGE.requests(tag)[1]["body"]["tools"], TOOLS)
    with check("tools: called in a stream"):
        with SIMULATED.messages.stream(**{**said("tools", STAGE.tag()), "tools": TOOLS}) as stream:
            parts = [e.delta.partial_json for e in stream if e.type == "content_block_delta"]
            (use,) = stream.get_final_message().content
        same(("".join(parts), use.input), (ARGUMENTS, json.loads(ARGUMENTS)))
        assert len(parts) > 3, parts


def leaving():
    with check("leaves in the middle of a stream"):
        tag = STAGE.tag()
        with SIMULATED.messages.stream(**said("endless", tag)) as stream:
            for _ in zip(range(5), stream.text_stream):
                pass
        assert STAGE.left(tag), STAGE.engines_say("_seen", tag)[1:]


def errors():
    kinds = {
        400: (anthropic.BadRequestError, "invalid_request_error"),
        401: (anthropic.AuthenticationError, "authentication_error"),
        404: (anthropic.NotFoundError, "not_found_error"),
        429: (anthropic.RateLimitError, "rate_limit_error"),
        500: (anthropic.InternalServerError, "api_error"),
        529: (anthropic.APIStatusError, "overloaded_error"),
    }
    for status, (kind, named) in kinds.items():
        with check(f"an engine's {status}"):
            error = raises(kind, lambda status=status: ask(f"status-{status}"))
            same((error.status_code, error.body["error"]["type"]), (status, named))
            same(error.body["error"]["message"], f"the engine says {status}")
    with check("ramjet's own: no such model"):
        error = raises(anthropic.NotFoundError, lambda: ask("chat", model="nobody's"))
        same((error.body["type"], error.body["error"]["type"]), ("error", "not_found_error"))
        assert MODEL in error.body["error"]["message"], error.body
    with check("ramjet's own: a wrong key"):
        error = raises(anthropic.AuthenticationError, lambda: ask("chat", client(STAGE.ramjet, api_key="wrong")))
        same(error.body["error"]["type"], "authentication_error")
    with check("ramjet's own: too large"):
        messages = [{"role": "user", "content": "x" * STAGE.max_body}]
        error = raises(anthropic.APIStatusError, lambda: ask("chat", messages=messages))
        same((error.status_code, error.body["error"]["type"]), (413, "request_too_large"))
    with check("ramjet's own: nobody listens"):
        error = raises(anthropic.APIStatusError, lambda: ask("chat", model="gone"))
        same((error.status_code, error.body["error"]["type"]), (502, "api_error"))
    with check("an error in a stream"):
        error = raises(anthropic.APIStatusError, lambda: list(ask("failing", stream=True)))
        assert "out of memory" in str(error), error


def coming_again():
    for status in (429, 503):
        with check(f"comes again after {status} when it is told to"):
            tag, began = STAGE.tag(), time.monotonic()
            patient = client(STAGE.ramjet, max_retries=2)
            same(patient.messages.create(**said(f"once-{status}", tag)).content[0].text, TEXT)
            seconds = time.monotonic() - began
            counts = [request["headers"]["x-stainless-retry-count"] for request in STAGE.requests(tag)]
            same(counts, ["0", "1"])
            assert seconds >= 1, f"Retry-After was 1 s, it came after {seconds:.2f} s"


def llama():
    request = {"model": "tiny", "max_tokens": 16, "messages": [{"role": "user", "content": "Say something."}]}
    request["extra_body"] = {"seed": 7, "temperature": 0}
    direct = client(STAGE.llama)
    with check("llama.cpp: chat and stream say what they say without ramjet"):
        whole = LLAMA.messages.create(**request)
        with LLAMA.messages.stream(**request) as stream:
            streamed = "".join(stream.text_stream)
        without = direct.messages.create(**request).content[0].text
        same((whole.content[0].text, streamed, whole.usage.output_tokens), (without, without, 16))
    with check("llama.cpp: tools reach the prompt, and so do calls and results"):

        def prompt(**more):
            usage = LLAMA.messages.create(**{**request, **more}).usage
            return usage.input_tokens + usage.cache_read_input_tokens

        use = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": json.loads(ARGUMENTS)}
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "wet"}
        turn = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        plain, given = prompt(), prompt(tools=TOOLS)
        used = prompt(tools=TOOLS, messages=request["messages"] + turn)
        assert plain < given < used, (plain, given, used)
    with check("llama.cpp: leaves in the middle of a stream"):
        with LLAMA.messages.stream(**{**request, "max_tokens": 40000}) as stream:
            for _ in zip(range(5), stream.text_stream):
                pass
        assert STAGE.llama_rests()
    with check("llama.cpp: a prompt that is too long"):
        long = [{"role": "user", "content": "x" * 60_000}]
        error = raises(anthropic.BadRequestError, lambda: LLAMA.messages.create(**{**request, "messages": long}))
        assert "x-ramjet-error" not in error.response.headers and "context" in str(error), error


if __name__ == "__main__":
    for part in (chat, streaming, tools, leaving, errors, coming_again, llama):
        part()
