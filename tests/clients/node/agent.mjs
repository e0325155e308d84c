// A coding agent's HTTP behaviour, by the public library that agents are built on: the AI SDK with its provider for
// OpenAI-compatible servers, as opencode uses them. Such an agent streams every turn with usage, names its session in
// a header, runs its tools itself and sends the conversation again with their results until the model calls none,
// aborts a turn when its user presses escape, and comes again by itself after errors that may pass.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { WEATHER, check, go, left, llamaRests, must, requests, same, stage, tag } from "./scene.mjs";

const { MODEL, TEXT, ARGUMENTS, CACHED_TOKENS, PROMPT_TOKENS } = stage.words;

function agent(url, { apiKey = stage.key, session = "session-1" } = {}) {
  const headers = { "x-session-affinity": session, "user-agent": "agent/1.0" };
  return createOpenAICompatible({ name: "ramjet", baseURL: `${url}/v1`, apiKey, headers, includeUsage: true });
}

const get_weather = tool({
  description: "?",
  inputSchema: jsonSchema(WEATHER),
  execute: async ({ city, days }) => `${days} wet days in ${city}`,
});

// a turn of the agent: everything that its model says, calls and uses, and the error that ends it
function turn(scene, options = {}) {
  const { via = agent(stage.ramjet), model = MODEL, own = tag(), prompt = `${scene} ${own}`, ...more } = options;
  const failed = [];
  const result = streamText({
    model: via(model),
    system: "You are a coding agent.",
    messages: [{ role: "user", content: prompt }],
    stopWhen: stepCountIs(5),
    maxRetries: 0,
    onError: ({ error }) => failed.push(error),
    ...more,
  });
  return { own, result, failed };
}

async function fails(scene, more) {
  const { result, failed } = turn(scene, more);
  await result.consumeStream();
  must(failed.length === 1, `${failed.length} errors`);
  return failed[0];
}

await check("a turn: streamed, with usage, its bytes as they were sent", async () => {
  const { own, result } = turn("chat");
  same(await result.text, TEXT);
  same([await result.finishReason, (await result.usage).inputTokens], ["stop", PROMPT_TOKENS]);
  const [seen] = await requests(own);
  same([seen.body.stream, seen.body.stream_options], [true, { include_usage: true }]);
  same(seen.headers["x-session-affinity"], "session-1");
  same(seen.headers.authorization, `Bearer ${stage.engine_key}`);
});

await check("a stream, as it is made", async () => {
  const { own, result } = turn("held");
  const texts = [];
  // the engine says no more until the first piece is here
  for await (const text of result.textStream) if (texts.push(text) === 1) await go(own);
  same(texts.join(""), TEXT);
});

await check("tools: called, run, their results sent back on the same replica", async () => {
  const { own, result } = turn("tools", { tools: { get_weather } });
  same(await result.text, 'It is 3 wet days in Zürich "Nord".');
  const steps = await result.steps;
  same(steps[0].toolCalls.map((call) => call.input), [JSON.parse(ARGUMENTS)]);
  same((await requests(own)).length, 2);
  const replicas = new Set(steps.map((step) => step.response.headers["x-ramjet-upstream"]));
  must(steps.length === 2 && replicas.size === 1 && !replicas.has(undefined), [...replicas]);
});

await check("twenty turns of a session stay on one replica", async () => {
  const replicas = new Set();
  const via = agent(stage.ramjet, { session: "session-2" });
  for (let n = 0; n < 20; n++) {
    const { result } = turn("chat", { via, prompt: `chat twenty${n}` });
    await result.consumeStream();
    replicas.add((await result.response).headers["x-ramjet-upstream"]);
  }
  must(replicas.size === 1, [...replicas]);
});

await check("escape in the middle of a turn", async () => {
  const leaves = new AbortController();
  const { own, result } = turn("endless", { abortSignal: leaves.signal });
  let count = 0;
  for await (const _ of result.textStream) if (++count === 5) leaves.abort();
  must(count >= 5 && (await left(own)));
});

for (const status of [400, 401, 404, 422, 429, 500]) {
  await check(`an engine's ${status}`, async () => {
    const error = await fails(`status-${status}`);
    must(APICallError.isInstance(error), error);
    same([error.statusCode, error.message], [status, `the engine says ${status}`]);
    same(error.isRetryable, status === 429 || status >= 500);
  });
}

for (const [name, more, status, code] of [
  ["no such model", { model: "nobody's" }, 404, "model_not_found"],
  ["a wrong key", { via: agent(stage.ramjet, { apiKey: "wrong" }) }, 401, "invalid_api_key"],
  ["too large", { prompt: "x".repeat(stage.max_body) }, 413, "body_too_large"],
  ["nobody listens", { model: "gone" }, 502, "connect_failed"],
]) {
  await check(`ramjet's own: ${name}`, async () => {
    const error = await fails("chat", more);
    must(APICallError.isInstance(error), error);
    same([error.statusCode, JSON.parse(error.responseBody).error.code], [status, code]);
    same(error.responseHeaders["x-ramjet-error"], code);
  });
}

await check("an error in a stream", async () => {
  const error = await fails("failing");
  must(JSON.stringify(error?.message ?? error).includes("out of memory"), JSON.stringify(error));
});

for (const status of [429, 503]) {
  await check(`comes again after ${status} when it is told to`, async () => {
    const began = performance.now();
    const { own, result } = turn(`once-${status}`, { maxRetries: 2 });
    same([await result.text, (await requests(own)).length], [TEXT, 2]);
    must(performance.now() - began >= 1000, "it came before Retry-After");
  });
}

await check("llama.cpp: a turn says what it says without ramjet", async () => {
  const say = async (url) => {
    const sampling = { temperature: 0, seed: 7, maxOutputTokens: 24 };
    const { result, failed } = turn("", { via: agent(url), model: "tiny", prompt: "Say something.", ...sampling });
    const text = await result.text;
    must(failed.length === 0 && text.length > 0, failed);
    return text;
  };
  same(await say(stage.ramjet_llama), await say(stage.llama));
});

await check("llama.cpp: tools reach the prompt", async () => {
  const tokens = async (more) => {
    const own = { via: agent(stage.ramjet_llama), model: "tiny", prompt: "Say something.", maxOutputTokens: 8 };
    return (await turn("", { ...own, ...more }).result.usage).inputTokens;
  };
  const [plain, given] = [await tokens({}), await tokens({ tools: { get_weather } })];
  must(plain > 0 && given > plain, [plain, given]);
});

await check("llama.cpp: escape in the middle of a turn", async () => {
  const leaves = new AbortController();
  const own = { via: agent(stage.ramjet_llama), model: "tiny", prompt: "Go on.", maxOutputTokens: 40_000 };
  const { result } = turn("", { ...own, abortSignal: leaves.signal });
  let count = 0;
  for await (const _ of result.textStream) if (++count === 5) leaves.abort();
  must(count >= 5 && (await llamaRests()));
});

await check("llama.cpp: a prompt that is too long", async () => {
  const error = await fails("", { via: agent(stage.ramjet_llama), model: "tiny", prompt: "x".repeat(60_000) });
  same([error.statusCode, error.responseHeaders["x-ramjet-error"]], [400, undefined]);
});
