"""The official OpenAI SDK for Python."""

import json
import time

import openai
from dialects import ARGUMENTS, CACHED_TOKENS, COMPLETION_TOKENS, MODEL, PROMPT_TOKENS, TEXT
from scene import WEATHER, Stage, check, raises, same

STAGE = Stage()
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "?", "parameters": WEATHER}}]


def client(url, **more):
    return openai.OpenAI(**{"base_url": f"{url}/v1", "api_key": STAGE.key, "max_retries": 0, "timeout": 60, **more})


SIMULATED, LLAMA = client(STAGE.ramjet), client(STAGE.ramjet_llama)


def said(scene, tag):
    return [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{scene} {tag}"}]


def ask(scene, via=SIMULATED, **more):
    return via.chat.completions.create(**{"model": MODEL, "messages": said(scene, STAGE.tag()), **more})


def usage_is_right(usage):
    same((usage.prompt_tokens, usage.completion_tokens), (PROMPT_TOKENS, COMPLETION_TOKENS))
    same(usage.prompt_tokens_details.cached_tokens, CACHED_TOKENS)


def chat():
    with check("chat"):
        tag = STAGE.tag()
        raw = SIMULATED.chat.completions.with_raw_response.create(model=MODEL, messages=said("chat", tag))
        answer = raw.parse()
        same(answer.choices[0].message.content, TEXT)
        usage_is_right(answer.usage)
        assert raw.headers["x-ramjet-upstream"] in "01" and raw.headers["x-ramjet-request-id"]
        (seen,) = STAGE.requests(tag)
        same(seen["body"], {"model": MODEL, "messages": said("chat", tag)})
        same(seen["headers"]["authorization"], f"Bearer {STAGE.engine_key}")
    with check("models"):
        same([model.id for model in SIMULATED.models.list()], [MODEL, "alias"])
        same(SIMULATED.models.retrieve(MODEL).max_model_len, 32768 - 16384)
    with check("an alias"):
        tag = STAGE.tag()
        answer = SIMULATED.chat.completions.create(model="alias", messages=said("chat", tag))
        same(answer.choices[0].message.content, TEXT)
        same(STAGE.requests(tag)[0]["body"]["model"], MODEL)


def streaming():
    with check("a stream, as it is made"):
        tag = STAGE.tag()
        stream = SIMULATED.chat.completions.create(
            model=MODEL, messages=said("held", tag), stream=True, stream_options={"include_usage": True}
        )
        chunks, texts = [], []
        for chunk in stream:
            chunks.append(chunk)
            texts += [choice.delta.content for choice in chunk.choices if choice.delta.content]
            if len(texts) == 1:
                STAGE.go(tag)  # the engine says no more until the first piece is here
        same("".join(texts), TEXT)
        same([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["stop"])
        usage_is_right(chunks[-1].usage)


def tools():
    with check("tools: called, answered, used"):
        tag = STAGE.tag()
        messages = said("tools", tag)
        message = SIMULATED.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message
        (call,) = message.tool_calls
        same((call.function.name, call.function.arguments), ("get_weather", ARGUMENTS))
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": 'so ist es: "nass"'}]
        answer = SIMULATED.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
        same(answer.choices[0].message.content, 'It is so ist es: "nass".')
        seen = STAGE.requests(tag)
        same(seen[1]["body"]["messages"][2]["tool_calls"][0]["function"]["arguments"], ARGUMENTS)
        same(seen[0]["body"]["tools"], TOOLS)
    with check("tools: called in a stream"):
        fragments = []
        for chunk in ask("tools", stream=True, tools=TOOLS):
            for choice in chunk.choices:
                fragments += [call.function.arguments for call in choice.delta.tool_calls or []]
        same("".join(fragments), ARGUMENTS)
        assert len(fragments) > 3, fragments


def leaving():
    with check("leaves in the middle of a stream"):
        tag = STAGE.tag()
        with SIMULATED.chat.completions.create(model=MODEL, messages=said("endless", tag), stream=True) as stream:
            for _, chunk in zip(range(5), stream):
                assert chunk.choices
        assert STAGE.left(tag), STAGE.engines_say("_seen", tag)[1:]


def errors():
    kinds = {
        400: openai.BadRequestError,
        401: openai.AuthenticationError,
        403: openai.PermissionDeniedError,
        404: openai.NotFoundError,
        409: openai.ConflictError,
        422: openai.UnprocessableEntityError,
        429: openai.RateLimitError,
        500: openai.InternalServerError,
    }
    for status, kind in kinds.items():
        with check(f"an engine's {status}"):
            error = raises(kind, lambda status=status: ask(f"status-{status}", stream=status == 400))
            same((error.status_code, error.code), (status, f"engine_{status}"))
            same(error.body["message"], f"the engine says {status}")
    with check("ramjet's own: no such model"):
        error = raises(openai.NotFoundError, lambda: ask("chat", model="nobody's"))
        same((error.code, error.type, error.param), ("model_not_found", "invalid_request_error", "model"))
        assert MODEL in error.message, error.message
    with check("ramjet's own: a wrong key"):
        error = raises(openai.AuthenticationError, lambda: ask("chat", client(STAGE.ramjet, api_key="wrong")))
        same((error.code, error.response.headers["x-ramjet-error"]), ("invalid_api_key", "invalid_api_key"))
    with check("ramjet's own: too large"):
        messages = [{"role": "user", "content": "x" * STAGE.max_body}]
        error = raises(openai.APIStatusError, lambda: ask("chat", messages=messages))
        same((error.status_code, error.code), (413, "body_too_large"))
    with check("ramjet's own: nobody listens"):
        error = raises(openai.InternalServerError, lambda: ask("chat", model="gone"))
        same((error.status_code, error.type), (502, "server_error"))
        same(error.code, "connect_failed")
    with check("an error in a stream"):
        error = raises(openai.APIError, lambda: list(ask("failing", stream=True)))
        assert "out of memory" in error.message, error.message
    with check("a stream that is cut"):
        # the SDK has no kind of its own for that: the error of its HTTP library, or its own that wraps it
        error = raises(Exception, lambda: list(ask("cut", stream=True)))
        assert "closed" in str(error) or "Connection" in type(error).__name__, repr(error)


def coming_again():
    for status in (429, 503):
        with check(f"comes again after {status} when it is told to"):
            tag, began = STAGE.tag(), time.monotonic()
            patient = client(STAGE.ramjet, max_retries=2)
            answer = patient.chat.completions.create(model=MODEL, messages=said(f"once-{status}", tag))
            same(answer.choices[0].message.content, TEXT)
            seconds = time.monotonic() - began
            counts = [request["headers"]["x-stainless-retry-count"] for request in STAGE.requests(tag)]
            same(counts, ["0", "1"])
            assert seconds >= 1, f"Retry-After was 1 s, it came after {seconds:.2f} s"
    with check("Retry-After passes to who does not come again"):
        error = raises(openai.RateLimitError, lambda: ask("once-429"))
        same(error.response.headers["retry-after"], "1")


def llama():
    messages = [{"role": "user", "content": "Say something."}]
    sampling = {"model": "tiny", "temperature": 0, "seed": 7, "max_tokens": 24}
    direct = client(STAGE.llama)
    with check("llama.cpp: chat and stream say what they say without ramjet"):
        whole = LLAMA.chat.completions.create(messages=messages, **sampling)
        chunks = list(LLAMA.chat.completions.create(messages=messages, stream=True, **sampling))
        streamed = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        without = direct.chat.completions.create(messages=messages, **sampling).choices[0].message.content
        same((whole.choices[0].message.content, streamed), (without, without))
        same(whole.usage.completion_tokens, 24)
    with check("llama.cpp: tools reach the prompt, and so do calls and results"):
        plain = LLAMA.chat.completions.create(messages=messages, **sampling).usage.prompt_tokens
        with_tools = LLAMA.chat.completions.create(messages=messages, tools=TOOLS, **sampling).usage.prompt_tokens
        function = {"name": "get_weather", "arguments": ARGUMENTS}
        call = {"id": "call_1", "type": "function", "function": function}
        turn = {"role": "assistant", "content": "", "tool_calls": [call]}
        talk = [*messages, turn, {"role": "tool", "tool_call_id": "call_1", "content": "wet"}]
        used = LLAMA.chat.completions.create(messages=talk, tools=TOOLS, **sampling).usage.prompt_tokens
        assert plain < with_tools < used, (plain, with_tools, used)
    with check("llama.cpp: a schema is kept to"):
        city = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
        named = {"name": "x", "schema": {**city, "additionalProperties": False}}
        request = {**sampling, "max_tokens": 200, "response_format": {"type": "json_schema", "json_schema": named}}
        answer = LLAMA.chat.completions.create(messages=messages, **request)
        same(json.loads(answer.choices[0].message.content), {"city": "Oslo"})
    with check("llama.cpp: responses"):
        events = list(LLAMA.responses.create(model="tiny", input="Say something.", max_output_tokens=8, stream=True))
        texts = [event.delta for event in events if event.type == "response.output_text.delta"]
        done = events[-1].response
        same((events[0].type, done.status in ("completed", "incomplete")), ("response.created", True))
        same("".join(texts), done.output_text)
    with check("llama.cpp: leaves in the middle of a stream"):
        endless = {**sampling, "max_tokens": 40000}
        with LLAMA.chat.completions.create(messages=messages, stream=True, **endless) as stream:
            for _ in zip(range(5), stream):
                pass
        assert STAGE.llama_rests()
    with check("llama.cpp: a prompt that is too long"):
        long = [{"role": "user", "content": "x" * 60_000}]
        error = raises(openai.BadRequestError, lambda: LLAMA.chat.completions.create(messages=long, **sampling))
        assert "context" in error.message and "x-ramjet-error" not in error.response.headers, error.message


if __name__ == "__main__":
    for part in (chat, streaming, tools, leaving, errors, coming_again, llama):
        part()
