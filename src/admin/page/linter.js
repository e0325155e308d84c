// What breaks prefixes: which part of which kind of request changes from turn to turn, how often, and what that costs. And,
// by model, why prompt tokens were read at all.

import { ago, amount, make, share, stack, table, watch, whole, word } from "./tools.js";

const EVERY = 5000;

/** Where prompt tokens came from or why they were read. */
export const ACCOUNTS = [
  ["cached", "a", "came from the cache"],
  ["new", "b", "never seen before"],
  ["routing", "c", "another replica held them"],
  ["evicted", "d", "believed to be held, and were not"],
  ["volatile", "f", "the prompt changed near its head"],
];

/** What a change is, and what helps. */
const CHANGES = {
  clock: ["a date or a clock", "write the time at the end, or to the hour"],
  nonce: ["a value that is new each time", "leave it out, or put it at the end"],
  value: ["a value changes", "move what changes behind what does not"],
  space: ["white space changes", "write the text the same way each time"],
  media: ["a picture or a recording", "send the same bytes again, not encoded anew"],
  dropped: ["something before the end is gone", "drop many turns at once, and seldom"],
  inserted: ["something comes in between", "add it at the end"],
  order: ["the order changes", "send the same order each time"],
  keys: ["the order of keys changes", "write keys in one order, sorted for example"],
};

export const parts = told => [["cached", told.cached_tokens], ...Object.entries(told.uncached)];

/** The accounts of a model, or of all, as a bar with its legend. */
export function accounts(told) {
  const all = parts(told);
  const sum = all.reduce((total, [, n]) => total + n, 0);
  const of = name => ACCOUNTS.find(([known]) => known === name) ?? [name, "e", ""];
  return [
    stack(all.map(([name, n]) => [of(name)[1], n, `${name} ${amount(n)} tokens`]), sum),
    make("ul", "parts", ...all.map(([name, n]) => make("li", "", make("i", `swatch ${of(name)[1]}`),
      make("b", "", share(sum ? n / sum : 0)), ` ${word(name)}: ${of(name)[2]}, ${amount(n)} tokens`))),
  ];
}

/** The first byte that differs, within the field: the lowest, and the last one where that is another. */
function place(f) {
  if (f.offset === null || f.offset === undefined) return "";
  const other = f.last_offset !== f.offset && f.last_offset !== undefined ? `, lately ${whole(f.last_offset)}` : "";
  return ` at byte ${whole(f.offset)}${other}${f.length ? ` of ${whole(f.length)}` : ""}`;
}

const findings = [
  { head: "field", kind: "word free", of: f => make("span", "", make("code", "", f.field), make("span", "faint", place(f))) },
  { head: "change", kind: "word free whole", of: f => CHANGES[f.change]?.[0] ?? word(f.change) },
  { head: "client", kind: "word", of: f => word(f.client) },
  { head: "asked", kind: "word", of: f => word(f.endpoint) },
  { head: "requests", of: f => whole(f.requests) },
  { head: "read again", unit: "tokens, about", short: "tokens", of: f => amount(f.tokens) },
  { head: "last", of: f => ago(Date.now() / 1000 - f.last) },
  { head: "what helps", kind: "word free whole", of: f => CHANGES[f.change]?.[1] ?? "–" },
];

const models = [
  { head: "model", kind: "word free", of: m => m.model ?? "–" },
  { head: "answers", of: m => whole(m.requests) },
  { head: "prompt", unit: "tokens", short: "tokens", of: m => amount(m.prompt_tokens) },
  ...ACCOUNTS.map(([name]) => ({ head: name, unit: "tokens", short: "tokens", of: m => amount(Object.fromEntries(parts(m))[name]) })),
  { head: "by turns", unit: "cached so, an estimate", short: "tokens", of: m => amount(m.round_robin_cached_tokens) },
  { head: "saved", unit: "tokens, an estimate", short: "tokens", of: m => amount(m.saved_tokens) },
];

export default {
  title: "Cache linter",
  open(root) {
    const found = table({
      columns: findings, key: f => [f.client, f.endpoint, f.field, f.change].join(" "),
      none: "Nothing was found: no prompt that was compared has changed before its end.",
    });
    const byTurns = "What replicas that take turns would have found cached";
    const byModel = table({ columns: models, key: m => String(m.model), none: "No answer has said yet how many prompt tokens were cached." });
    const told = make("span", "faint", "");
    const estimate = make("p", "note", "");
    const error = make("p", "note bad", "");
    const lacks = make("p", "empty", "This version does not look for it.");
    const note = "Prompts of which much is not held are compared with those before them, of the same kind of client. What stands before a change is served from the cache, what " +
      "stands behind it is read again. Only names of fields and places are kept, never what stands there.";
    root.append(
      make("section", "", make("div", "head", make("h2", "", "What breaks prefixes"), told), make("p", "note", note), error, found.element),
      make("section", "", make("div", "head", make("h2", "", "Prompt tokens by model")), estimate, byModel.element));
    const close = watch("/api/prompts", EVERY, all => {
      const { looked_at, passed_over, findings: rows } = all.linter;
      told.textContent = `${whole(looked_at)} prompts compared` + (passed_over ? `, ${whole(passed_over)} passed over while it was busy` : "");
      found.show(rows);
      byModel.show(all.models);
      estimate.textContent = all.estimate ? `${byTurns} is an estimate, and so is what was saved beyond that: ${all.estimate}.` : "";
    }, error, problem => {
      if (problem.status !== 404) return false;
      root.replaceChildren(make("section", "", make("h2", "", "What breaks prefixes"), lacks));
      return true;
    });
    return { close };
  },
};
