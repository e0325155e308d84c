// The official OpenAI SDK for Node.

import OpenAI from "openai";
import { WEATHER, check, collect, go, left, llamaRests, must, raises, requests, same, stage, tag } from "./scene.mjs";

const { MODEL, TEXT, ARGUMENTS, CACHED_TOKENS, PROMPT_TOKENS } = stage.words;
const tools = [{ type: "function", function: { name: "get_weather", description: "?", parameters: WEATHER } }];
const client = (url, more = {}) => new OpenAI({ baseURL: `${url}/v1`, apiKey: stage.key, maxRetries: 0, ...more });
const [simulated, llama] = [client(stage.ramjet), client(stage.ramjet_llama)];
const said = (scene, tag) => [{ role: "user", content: `${scene} ${tag}` }];
const ask = (scene, { via = simulated, ...more } = {}) =>
  via.chat.completions.create({ model: MODEL, messages: said(scene, tag()), ...more });

await check("chat", async () => {
  const own = tag();
  const request = { model: MODEL, messages: said("chat", own) };
  const { data, response } = await simulated.chat.completions.create(request).withResponse();
  same(data.choices[0].message.content, TEXT);
  same([data.usage.prompt_tokens, data.usage.prompt_tokens_details.cached_tokens], [PROMPT_TOKENS, CACHED_TOKENS]);
  must(response.headers.get("x-ramjet-request-id"));
  same((await requests(own)).map((seen) => seen.body), [request]);
});

await check("a stream, as it is made", async () => {
  const own = tag();
  const request = { model: MODEL, messages: said("held", own), stream: true, stream_options: { include_usage: true } };
  const texts = [];
  let usage;
  for await (const chunk of await simulated.chat.completions.create(request)) {
    usage = chunk.usage ?? usage;
    const text = chunk.choices[0]?.delta.content;
    // the engine says no more until the first piece is here
    if (text && texts.push(text) === 1) await go(own);
  }
  same([texts.join(""), usage.prompt_tokens], [TEXT, PROMPT_TOKENS]);
});

await check("tools: called, answered, used", async () => {
  const messages = said("tools", tag());
  const { message } = (await simulated.chat.completions.create({ model: MODEL, messages, tools })).choices[0];
  const [call] = message.tool_calls;
  same([call.function.name, call.function.arguments], ["get_weather", ARGUMENTS]);
  messages.push(message, { role: "tool", tool_call_id: call.id, content: 'so ist es: "nass"' });
  const answer = await simulated.chat.completions.create({ model: MODEL, messages, tools });
  same(answer.choices[0].message.content, 'It is so ist es: "nass".');
});

await check("tools: called in a stream", async () => {
  const chunks = await collect(await ask("tools", { stream: true, tools }));
  const calls = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
  const parts = calls.map((call) => call.function.arguments);
  same(parts.join(""), ARGUMENTS);
  must(parts.length > 3, parts);
});

await check("leaves in the middle of a stream", async () => {
  const own = tag();
  const request = { model: MODEL, messages: said("endless", own), stream: true };
  const stream = await simulated.chat.completions.create(request);
  let count = 0;
  for await (const _ of stream) if (++count === 5) break;
  must(await left(own));
});

await check("is told to leave before anything was said", async () => {
  const own = tag();
  const leaves = new AbortController();
  const request = { model: MODEL, messages: said("endless", own), stream: true };
  const stream = await simulated.chat.completions.create(request, { signal: leaves.signal });
  leaves.abort();
  await collect(stream).catch(() => {});
  must(await left(own));
});

for (const [status, kind] of [
  [400, OpenAI.BadRequestError],
  [401, OpenAI.AuthenticationError],
  [403, OpenAI.PermissionDeniedError],
  [404, OpenAI.NotFoundError],
  [409, OpenAI.ConflictError],
  [422, OpenAI.UnprocessableEntityError],
  [429, OpenAI.RateLimitError],
  [500, OpenAI.InternalServerError],
]) {
  await check(`an engine's ${status}`, async () => {
    const error = await raises(kind, () => ask(`status-${status}`));
    same([error.status, error.code, error.error.message], [status, `engine_${status}`, `the engine says ${status}`]);
  });
}

await check("ramjet's own: no such model", async () => {
  const error = await raises(OpenAI.NotFoundError, () => ask("chat", { model: "nobody's" }));
  same([error.code, error.type, error.param], ["model_not_found", "invalid_request_error", "model"]);
});

await check("ramjet's own: a wrong key", async () => {
  const via = client(stage.ramjet, { apiKey: "wrong" });
  const error = await raises(OpenAI.AuthenticationError, () => ask("chat", { via }));
  same([error.code, error.headers.get("x-ramjet-error")], ["invalid_api_key", "invalid_api_key"]);
});

await check("ramjet's own: too large", async () => {
  const messages = [{ role: "user", content: "x".repeat(stage.max_body) }];
  const error = await raises(OpenAI.APIError, () => ask("chat", { messages }));
  same([error.status, error.code], [413, "body_too_large"]);
});

await check("ramjet's own: nobody listens", async () => {
  const error = await raises(OpenAI.InternalServerError, () => ask("chat", { model: "gone" }));
  same([error.status, error.code], [502, "connect_failed"]);
});

await check("an error in a stream", async () => {
  const error = await raises(OpenAI.APIError, async () => collect(await ask("failing", { stream: true })));
  must(error.message.includes("out of memory"), error.message);
});

await check("a stream that is cut", async () => {
  await raises(Error, async () => collect(await ask("cut", { stream: true })));
});

for (const status of [429, 503]) {
  await check(`comes again after ${status} when it is told to`, async () => {
    const [own, began] = [tag(), performance.now()];
    const patient = client(stage.ramjet, { maxRetries: 2 });
    const answer = await patient.chat.completions.create({ model: MODEL, messages: said(`once-${status}`, own) });
    same(answer.choices[0].message.content, TEXT);
    same((await requests(own)).map((seen) => seen.headers["x-stainless-retry-count"]), ["0", "1"]);
    must(performance.now() - began >= 1000, "it came before Retry-After");
  });
}

const messages = [{ role: "user", content: "Say something." }];
const sampling = { model: "tiny", messages, temperature: 0, seed: 7, max_tokens: 24 };

await check("llama.cpp: chat and stream say what they say without ramjet", async () => {
  const text = async (via) => (await via.chat.completions.create(sampling)).choices[0].message.content;
  const chunks = await collect(await llama.chat.completions.create({ ...sampling, stream: true }));
  const streamed = chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
  const without = await text(client(stage.llama));
  same([await text(llama), streamed], [without, without]);
});

await check("llama.cpp: tools reach the prompt", async () => {
  const prompt = async (more) => (await llama.chat.completions.create({ ...sampling, ...more })).usage.prompt_tokens;
  const [plain, given] = [await prompt({}), await prompt({ tools })];
  must(plain < given, [plain, given]);
});

await check("llama.cpp: leaves in the middle of a stream", async () => {
  let count = 0;
  const stream = await llama.chat.completions.create({ ...sampling, max_tokens: 40_000, stream: true });
  for await (const _ of stream) if (++count === 5) break;
  must(await llamaRests());
});

await check("llama.cpp: a prompt that is too long", async () => {
  const long = [{ role: "user", content: "x".repeat(60_000) }];
  const tooLong = () => llama.chat.completions.create({ ...sampling, messages: long });
  const error = await raises(OpenAI.BadRequestError, tooLong);
  must(error.message.includes("context") && !error.headers.get("x-ramjet-error"), error.message);
});
