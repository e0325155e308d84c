// What every client program in JavaScript does: it asks what an engine saw, and tells what it found, one line of JSON a
// check. The same as scene.py.

export const stage = JSON.parse(process.argv[2]);
export const WEATHER = {
  type: "object",
  properties: { city: { type: "string" }, days: { type: "integer" }, exact: { type: "number" } },
  required: ["city", "days", "exact"],
};
const PATIENCE = 20_000; // milliseconds for what happens by itself
const program = process.argv[1].split("/").pop().split(".")[0];
let number = 0;

export const tag = () => `${program}-js${number++}`;

// what the engines know of a tag: requests, streams that run, clients that left
const enginesSay = async (verb, tag) =>
  (await fetch(`${stage.engine}/${verb}/${tag}`, { method: verb === "_go" ? "POST" : "GET" })).json();

export const requests = async (tag) => (await enginesSay("_seen", tag)).requests;
export const go = (tag) => enginesSay("_go", tag);

export async function until(condition, pause = 20) {
  const end = performance.now() + PATIENCE;
  let value;
  while (!(value = await condition()) && performance.now() < end) await new Promise((done) => setTimeout(done, pause));
  return value;
}

// whether a client's leaving reaches its engine
export const left = (tag) =>
  until(async () => {
    const { running, left } = await enginesSay("_seen", tag);
    return running === 0 && left === 1;
  });

// whether llama.cpp has stopped; it looks after its clients once a second, unless it is asked more often
export const llamaRests = () =>
  until(async () => !(await (await fetch(`${stage.llama}/slots`)).json()).some((slot) => slot.is_processing), 1500);

export async function check(name, body) {
  let passed = true;
  let figures = "";
  try {
    figures = (await body()) ?? "";
  } catch (error) {
    passed = false;
    figures = String(error?.stack ?? error).split("\n").slice(0, 3).join(" ");
  }
  console.log(JSON.stringify({ check: name, passed, figures: String(figures).slice(0, 300) }));
}

export function same(found, wanted) {
  const [a, b] = [found, wanted].map((value) => JSON.stringify(value));
  if (a !== b) throw new Error(`found ${a}, wanted ${b}`);
}

export function must(condition, why = "it does not hold") {
  if (!condition) throw new Error(String(why));
}

// the error of this kind that `ask` ends with
export async function raises(kind, ask) {
  try {
    await ask();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`no ${kind.name}`);
}

export async function collect(stream) {
  const all = [];
  for await (const each of stream) all.push(each);
  return all;
}
