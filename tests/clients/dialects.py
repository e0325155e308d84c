"""What an engine says in the two dialects that clients speak: OpenAI's chat completions and Anthropic's messages."""

import json

MODEL = "m1"
# quotes, escapes, characters of two, three and four bytes, and line ends
TEXT = 'Grüße, "Welt"\n— 世界 🌍 \\ end\r\n\t.'
ARGUMENTS = '{"city": "Zürich \\"Nord\\"", "days": 3, "exact": 1.50}'
PROMPT_TOKENS, CACHED_TOKENS, COMPLETION_TOKENS = 120, 80, 17
BLOCK = 64  # bytes of a cache block: 16 tokens of four


def dumps(value):
    return json.dumps(value, ensure_ascii=False)


class Cache:
    """What an engine has read: it tells the tokens of a prompt, and those of them that it had read before."""

    def __init__(self):
        self.known = set()

    def read(self, text):
        data, prefix, cached, is_known = text.encode(), 0, 0, True
        for at in range(0, len(data) - BLOCK + 1, BLOCK):
            prefix = hash((prefix, data[at : at + BLOCK]))
            is_known = is_known and prefix in self.known
            cached += BLOCK // 4 if is_known else 0
            self.known.add(prefix)
        return len(data) // 4 + 1, cached


class OpenAI:
    # tokens of the prompt, and those from the cache
    counts = PROMPT_TOKENS, CACHED_TOKENS
    path = "/v1/chat/completions"
    done = "data: [DONE]\n\n"

    def error(self, status, message):
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        return dumps({"error": {"message": message, "type": kind, "code": f"engine_{status}", "param": None}})

    def usage(self):
        prompt, cached = self.counts
        return {
            "prompt_tokens": prompt,
            "completion_tokens": COMPLETION_TOKENS,
            "total_tokens": prompt + COMPLETION_TOKENS,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def whole(self, text=None, call=None):
        message = {"role": "assistant", "content": text}
        if call:
            function = {"name": call, "arguments": ARGUMENTS}
            message["tool_calls"] = [{"id": "call_1", "type": "function", "function": function}]
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call else "stop", "logprobs": None}
        return dumps({**self.head("chat.completion"), "choices": [choice], "usage": self.usage()})

    def head(self, kind):
        return {"id": "chatcmpl-1", "object": kind, "created": 1700000000, "model": MODEL}

    def chunk(self, delta, finish=None, **more):
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return f"data: {dumps({**self.head('chat.completion.chunk'), 'choices': [choice], **more})}\n\n"

    def begin(self):
        return self.chunk({"role": "assistant", "content": ""})

    def piece(self, text):
        return self.chunk({"content": text})

    def end(self, finish="stop"):
        usage = {**self.head("chat.completion.chunk"), "choices": [], "usage": self.usage()}
        return [self.chunk({}, finish), f"data: {dumps(usage)}\n\n", self.done]

    def call(self, name):
        """The events of one tool call, its arguments in fragments."""
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": name, "arguments": ""}}
        events = [self.begin(), self.chunk({"tool_calls": [first]})]
        for at in range(0, len(ARGUMENTS), 7):
            part = {"index": 0, "function": {"arguments": ARGUMENTS[at : at + 7]}}
            events.append(self.chunk({"tool_calls": [part]}))
        return events + self.end("tool_calls")

    def failure(self, message):
        """An error in the middle of a stream, as vLLM sends it."""
        return [f"data: {self.error(500, message)}\n\n", self.done]

    def result(self, body):
        """The result of a tool that the conversation ends with."""
        last = body["messages"][-1]
        return last["content"] if last["role"] == "tool" else None


class Anthropic:
    counts = PROMPT_TOKENS, CACHED_TOKENS
    path = "/v1/messages"

    def error(self, status, message):
        kinds = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}
        kinds |= {429: "rate_limit_error", 529: "overloaded_error"}
        return dumps({"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}})

    def usage(self):
        prompt, cached = self.counts
        read = {"cache_creation_input_tokens": 0, "cache_read_input_tokens": cached}
        return {"input_tokens": prompt - cached, "output_tokens": COMPLETION_TOKENS, **read}

    def message(self, content, stop):
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": MODEL}
        return {**head, "content": content, "stop_reason": stop, "stop_sequence": None, "usage": self.usage()}

    def whole(self, text=None, call=None):
        if not call:
            return dumps(self.message([{"type": "text", "text": text}], "end_turn"))
        use = {"type": "tool_use", "id": "toolu_1", "name": call, "input": json.loads(ARGUMENTS)}
        return dumps(self.message([use], "tool_use"))

    def event(self, kind, **more):
        return f"event: {kind}\ndata: {dumps({'type': kind, **more})}\n\n"

    def begin(self, block=None):
        block = block or {"type": "text", "text": ""}
        start = self.event("message_start", message=self.message([], None))
        return start + self.event("content_block_start", index=0, content_block=block) + self.event("ping")

    def piece(self, text):
        return self.event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def end(self, stop="end_turn"):
        delta = {"stop_reason": stop, "stop_sequence": None}
        last = self.event("message_delta", delta=delta, usage={"output_tokens": COMPLETION_TOKENS})
        return [self.event("content_block_stop", index=0), last, self.event("message_stop")]

    def call(self, name):
        events = [self.begin({"type": "tool_use", "id": "toolu_1", "name": name, "input": {}})]
        for at in range(0, len(ARGUMENTS), 7):
            delta = {"type": "input_json_delta", "partial_json": ARGUMENTS[at : at + 7]}
            events.append(self.event("content_block_delta", index=0, delta=delta))
        return events + self.end("tool_use")

    def failure(self, message):
        return [self.event("error", error={"type": "overloaded_error", "message": message})]

    def result(self, body):
        content = body["messages"][-1]["content"]
        results = [part for part in content if part["type"] == "tool_result"] if isinstance(content, list) else []
        if not results:
            return None
        inner = results[0]["content"]
        return inner if isinstance(inner, str) else inner[0]["text"]


DIALECTS = {each.path: each for each in (OpenAI(), Anthropic())}
