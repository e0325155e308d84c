// Decisions as they are made. A click tells why: each candidate's price in its parts, or its score, and what came of it.

import { ago, amount, button, bytes, clock, facts, get, make, ms, stack, table, whole, word } from "./tools.js";

/** The parts of a price, all in milliseconds. */
const TERMS = {
  queue: ["a", "until the work before it is done"],
  prefill: ["b", "to read what is not held"],
  decode: ["c", "to generate"],
  imposed: ["d", "delay for requests that are there"],
  coming: ["e", "delay for requests that will come"],
  evicted: ["f", "to read again what it pushes out"],
  later: ["g", "its session's later turns, in that company"],
};

const end = d => {
  if (!d.ended) return make("span", "faint", "○ in flight");
  const isGood = d.ended.word === "ok";
  return make("span", isGood ? "good" : d.ended.word === "client_left" ? "warn" : "bad", `${isGood ? "●" : "▲"} ${word(d.ended.word)}`);
};

const columns = pick => [
  { head: "request", kind: "word", of: d => button(d.id, () => pick(d.id), "name"), seen: d => d.id },
  { head: "at", of: d => clock(d.at, true) },
  { head: "replica", kind: "word free whole", of: d => d.ended?.replica ?? d.replica ?? "–" },
  { head: "decided by", kind: "word less", of: d => word(d.reason) },
  { head: "held", unit: "of blocks", short: "blocks", kind: "less", of: d => `${whole(d.overlap_blocks)} of ${whole(d.blocks)}` },
  { head: "cached", unit: "tokens (expected)", short: "tokens", kind: "less", of: d => `${amount(d.ended?.cached_tokens)} (${amount(Math.round(d.expected.cached_tokens))})` },
  { head: "prompt", unit: "tokens", short: "tokens", kind: "less", of: d => amount(d.ended?.prompt_tokens ?? Math.round(d.expected.prompt_tokens)) },
  { head: "first token", unit: "(expected)", kind: "whole", of: d => `${ms(d.ended?.ttft_ms)} (${ms(d.expected.ttft_ms)})` },
  { head: "asked", kind: "word less free whole", of: d => word(d.endpoint) + (d.model ? `, ${d.model}` : "") },
  { head: "end", kind: "word", of: end },
];

/** The column of the candidates, the first of whom goes first. */
const candidate = first => ({
  head: "replica", kind: "word free", of: c => make("span", c === first ? "wins" : "", `${c === first ? "▶ " : ""}${c.replica}`) });

/** What the order of the candidates tells: the sentence above it gives the reason where it is not the rule's own. */
const order = ([first, ...others], cost, best, better) =>
  others.some(c => cost(c) < cost(first)) ? `Another one is ${better}; what outweighs that is said above.` : `The ${best} goes first.`;

function prices(told) {
  const names = Object.keys(told.candidates[0]?.price_ms ?? {}).filter(name => name !== "total");
  const most = Math.max(...told.candidates.map(c => names.reduce((sum, name) => sum + Math.max(0, c.price_ms[name]), 0)));
  const list = table({
    cards: false,
    none: "there was no candidate",
    key: c => String(c.ordinal),
    columns: [
      candidate(told.candidates[0]),
      { head: "price", kind: "word", of: c => stack(names.map(name => [TERMS[name]?.[0] ?? "e", c.price_ms[name], `${name} ${ms(c.price_ms[name])}`]), most, true) },
      { head: "total", unit: "ms", of: c => amount(c.price_ms.total) },
      ...names.map(name => ({ head: name, unit: "ms", of: c => amount(c.price_ms[name]) })),
      { head: "held", unit: "tokens", of: c => amount(Math.round(c.held_tokens)) },
    ],
  });
  list.show(told.candidates);
  const legend = names.map(name => make("li", "", make("i", `swatch ${TERMS[name]?.[0] ?? "e"}`), make("b", "", name), ` ${TERMS[name]?.[1] ?? ""}`));
  const note = `${order(told.candidates, c => c.price_ms.total, "cheapest", "cheaper")} All parts are milliseconds, and the total is their sum.`;
  return [make("p", "note", note), list.element, make("div", "pad", make("ul", "parts", ...legend))];
}

function scores(told) {
  const isAffinity = told.candidates.some(c => c.affinity);
  const list = table({
    cards: false,
    none: "there was no candidate",
    key: c => String(c.ordinal),
    columns: [
      candidate(told.candidates[0]),
      { head: "held", unit: "blocks", of: c => whole(c.overlap_blocks) },
      ...(isAffinity ? [
        { head: "credit", unit: "blocks", of: c => amount(c.affinity?.credit_blocks) },
        { head: "load", unit: "blocks", of: c => amount(c.affinity?.load_blocks) },
        { head: "score", unit: "blocks", of: c => amount(c.score) }] : []),
      { head: "load", unit: "units", of: c => whole(c.load_units) },
    ],
  });
  list.show(told.candidates);
  const note = isAffinity
    ? `${order(told.candidates, c => -c.score, "highest score", "better")} A score is credit minus load, in blocks.`
    : "The least load goes first, as far as the rule looks at it.";
  return [make("p", "note", note), list.element];
}

function came(told) {
  const { expected, ended } = told;
  const list = table({
    cards: false,
    none: "",
    key: row => row[0],
    columns: [
      { head: "", kind: "word", of: row => row[0] },
      { head: "expected", of: row => row[1] },
      { head: "came", of: row => row[2] },
      { head: "off by", of: row => row[3] ?? "" },
    ],
  });
  const { off_by: off } = ended ?? {};
  const signed = (value, show) => (value === null || value === undefined ? "" : `${value < 0 ? "−" : "+"}${show(Math.abs(value))}`);
  list.show([
    ["cached tokens", amount(Math.round(expected.cached_tokens)), amount(ended?.cached_tokens), signed(off?.cached_tokens, n => amount(Math.round(n)))],
    ["prompt tokens", amount(Math.round(expected.prompt_tokens)), amount(ended?.prompt_tokens)],
    ["generated tokens", amount(told.expected_output_tokens === null ? null : Math.round(told.expected_output_tokens)), amount(ended?.output_tokens)],
    ["first token", ms(expected.ttft_ms), ms(ended?.ttft_ms), signed(off?.ttft_ms, ms)],
  ]);
  return list.element;
}

function explain(told) {
  const { ended } = told;
  const uncached = ended?.uncached ? Object.entries(ended.uncached).filter(([, n]) => n > 0) : [];
  const more = facts([
    ["asked", word(told.endpoint) + (told.model ? `, model ${told.model}` : "")],
    ["when", `${clock(told.at, true)}, ${ago(Date.now() / 1000 - told.at)}`],
    ["size", `${bytes(told.body_bytes)}, ${whole(told.blocks)} blocks`],
    ["rule", word(told.policy) + (told.rule ? `, basis ${told.rule.basis}, at most ${whole(told.rule.cap_blocks)} blocks, alpha ${told.rule.alpha}` : "")],
    ["runner-up", told.runner_up],
    ["went to", ended?.replica ?? told.replica],
    ["end", ended ? `${word(ended.word)}, status ${ended.status || "none"}, ${whole(ended.attempts)} attempt${ended.attempts === 1 ? "" : "s"}, ${ms(ended.duration_ms)} in all` : "it is being served"],
    ["read because", uncached.length ? uncached.map(([name, n]) => `${amount(n)} tokens ${word(name)}`).join(", ") : null],
    ["session", told.hint ? (told.hint.stays ? `was at ${told.hint.home ?? "?"} before, worth up to ${ms(told.hint.break_ms)}` : "named, and not kept here") : null],
    ["single flight", told.flight ? word(told.flight) : null],
    ["lane", told.lane && told.lane !== "open" ? word(told.lane) : null],
    ["other candidates", told.more_candidates ? `${whole(told.more_candidates)} more, not kept` : null],
  ]);
  const table = told.policy === "cost" ? prices(told) : scores(told);
  return [make("p", "why", sentence(told)), ...table,
    make("div", "pad pair", make("div", "", make("h3", "", "What came of it"), came(told)), make("div", "", make("h3", "", "The request"), more))];
}

const sentence = told => `${word(told.policy)} chose ${told.replica ?? "nobody"}: ${told.why}.`;

function panel(id, close) {
  const title = make("h2", "", "Why ", make("code", "", id));
  const body = make("div", "");
  body.setAttribute("aria-live", "polite");
  const closing = button("Close", close);
  const element = make("section", "panel", make("div", "head", title, closing), body);
  element.setAttribute("aria-label", "Why");
  let last = null;
  async function ask() {
    let told;
    try {
      told = await get(`/api/explain/${encodeURIComponent(id)}`);
    } catch (error) {
      if (last === null || error.status === 404) {
        body.replaceChildren(make("p", "empty", error.status === 404 ? "It is not among the last decisions any more." : `It cannot be asked: ${error.message}`));
      }
      return;
    }
    const seen = JSON.stringify(told);
    if (seen === last) return;
    last = seen;
    body.replaceChildren(...explain(told));
  }
  ask();
  return { element, closing, ask, isOpen: () => last === null || JSON.parse(last).state !== "ended" };
}

/** What stays when another decision is opened: the filter, whether the list stands still, and who was opened last. */
const kept = { filter: "", paused: false, rows: [], opened: null };

export default {
  title: "Decisions",
  open(root, store, chosen) {
    const pick = id => (location.hash = `decisions/${id}`);
    const close = () => (location.hash = "decisions");
    const list = table({ columns: columns(pick), key: d => d.id, none: "No request yet. Each one shows here as it is placed." });
    const pause = button("", () => {
      kept.paused = !kept.paused;
      tellPause();
      tell("decisions");
    });
    const tellPause = () => {
      pause.setAttribute("aria-pressed", String(kept.paused));
      pause.textContent = kept.paused ? "Paused" : "Pause";
    };
    tellPause();
    const filter = make("input", "");
    filter.type = "search";
    filter.placeholder = "replica, model, reason, end…";
    filter.value = kept.filter;
    filter.addEventListener("input", () => {
      kept.filter = filter.value;
      show();
    });
    const head = make("div", "head", make("h2", "", "The last 50 decisions"), make("label", "", "Filter", filter), pause);
    const lists = make("section", "", head, list.element);
    const why = chosen ? panel(chosen, close) : null;
    root.append(make("div", why ? "split open" : "split", lists, why?.element ?? null));
    const says = d => [d.id, d.replica, d.ended?.replica, d.model, d.reason, d.endpoint, d.ended?.word ?? "in flight"].join(" ").replaceAll("_", " ").toLowerCase();
    function show() {
      const { rows } = kept;
      const wanted = kept.filter.trim().toLowerCase();
      list.show(rows.filter(d => says(d).includes(wanted)), rows.length ? "None of the last 50 decisions matches." : undefined);
      for (const d of rows) list.line(d.id)?.classList.toggle("picked", d.id === chosen);
    }
    function tell(what) {
      if (what !== "decisions" || !store.decisions) return;
      if (!kept.paused) {
        kept.rows = store.decisions.decisions;
        show();
      }
      if (why?.isOpen()) why.ask();
    }
    lists.addEventListener("keydown", event => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (!by || !event.target.matches("button.name")) return;
      const all = [...lists.querySelectorAll("button.name")];
      all[all.indexOf(event.target) + by]?.focus();
      event.preventDefault();
    });
    show();
    tell("decisions");
    // the keyboard goes on where it was
    if (why) why.closing.focus();
    else if (kept.opened) list.line(kept.opened)?.querySelector("button").focus();
    kept.opened = chosen || null;
    return { tell, escape: close };
  },
};
