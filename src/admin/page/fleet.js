// Each replica: how it is and why, what it has to do, what it keeps and how fast it is believed to be.

import { amount, bar, button, facts, get, make, ms, share, span, state, table, whole } from "./tools.js";
import { chart } from "./chart.js";

const CHARTS = [
  { title: "Prompt tokens from cache", write: share, top: 1, lines: [{ name: "cached_share", title: "reported", kind: "a" }] },
  { title: "Requests at a time", write: amount, lines: [{ name: "in_flight", title: "in flight", kind: "a" }] },
  { title: "Prompt tokens", write: n => `${amount(n)}/s`, lines: [{ name: "prompt_tokens_per_s", title: "prompt", kind: "a" }] },
  { title: "Time up", write: share, top: 1, lines: [{ name: "up_share", title: "took requests", kind: "c" }] },
];

const since = r => {
  if (r.draining_for_s === null) return null;
  const left = r.leaves_within_s > 0 ? `, its sessions leave within ${span(r.leaves_within_s)}` : "";
  return `for ${span(r.draining_for_s)}${left}`;
};

const columns = pick => [
  { head: "replica", kind: "word free", of: r => button(r.name, () => pick(r.name), "name"), seen: r => r.name },
  { head: "state", kind: "word whole", of: r => {
    const cell = make("span", "", state(r.state, r.reason));
    const more = [r.detail, since(r)].filter(Boolean).join(", ");
    if (more) cell.append(make("span", "faint", ` ${more}`));
    return cell;
  } },
  { head: "in flight", unit: "requests", of: r => whole(r.in_flight) },
  { head: "sessions", unit: "expected back", of: r => whole(r.sessions) },
  { head: "waiting", unit: "prompts", of: r => amount(r.waiting) },
  { head: "prefill queue", unit: "until it is read", of: r => ms(r.queue_ms) },
  { head: "decoding", unit: "sequences", of: r => amount(r.decoding) },
  { head: "cache hits", unit: "of prompt tokens", of: r => bar(r.hit_share), seen: r => share(r.hit_share) },
  { head: "keeps", unit: "tokens, as believed", short: "tokens", of: r => amount(r.keeps_tokens) },
  { head: "load", unit: "units", short: "units", of: r => whole(r.load_units) },
  { head: "reads", unit: "tokens/s, as learned", short: "tokens/s", of: r => amount(r.rates.prefill_tokens_per_s) },
  { head: "step", unit: "ms, and per sequence", short: "ms", of: r => `${amount(r.rates.step_ms)} + ${amount(r.rates.step_growth_ms)}` },
];

function detail(close) {
  const title = make("h2", "");
  const told = make("div", "pad");
  const charts = CHARTS.map(chart);
  const error = make("p", "note", "");
  const panel = make("section", "", make("div", "head", title, button("Close", close)), told, error,
    make("div", "pad", make("div", "charts", ...charts.map(one => one.element))));
  return {
    element: panel,
    title,
    about(replica) {
      told.replaceChildren(facts([
        ["state", state(replica.state, replica.reason)],
        ["says", replica.detail],
        ["draining for", replica.draining_for_s === null ? null : span(replica.draining_for_s)],
        ["without requests for", replica.empty_for_s === null ? null : span(replica.empty_for_s)],
        ["sessions", `${whole(replica.sessions)} are expected back, with ${amount(replica.session_tokens)} tokens`],
        ["in the process before", replica.in_flight_elsewhere ? `${whole(replica.in_flight_elsewhere)} requests still run there` : null],
        ["ordinal", `${replica.ordinal}, as clients see it in X-Ramjet-Upstream`],
        ["prefill queue", `${ms(replica.queue_ms)} for ${amount(replica.waiting)} prompts`],
        ["cache", `keeps ${amount(replica.keeps_tokens)} tokens as believed; ${share(replica.hit_share)} of prompt tokens came from it`],
        ["speed", `${amount(replica.rates.prefill_tokens_per_s)} tokens/s read, a step takes ${ms(replica.rates.step_ms)}`],
      ]));
    },
    async ask(name) {
      try {
        const series = await get(`/api/series?replica=${encodeURIComponent(name)}`);
        error.textContent = series.at.length ? "The last day, in steps of five minutes." : "Nothing was measured yet.";
        charts.forEach(one => one.show(series, 86400));
      } catch (problem) {
        error.textContent = `Its day is not known: ${problem.message}.`;
      }
    },
  };
}

export default {
  title: "Fleet",
  open(root, store, chosen) {
    const list = table({
      columns: columns(name => (location.hash = `fleet/${encodeURIComponent(name)}`)),
      key: replica => `${replica.ordinal} ${replica.name}`,
      none: "There is no replica. Name some in fleet.replicas, or see what discovery says in the log.",
    });
    const told = make("span", "faint", "");
    const section = make("section", "", make("div", "head", make("h2", "", "Replicas"), told), list.element);
    const close = () => (location.hash = "fleet");
    const panel = chosen ? detail(close) : null;
    if (panel) {
      panel.title.textContent = chosen;
      root.append(panel.element);
      panel.ask(chosen);
    }
    root.append(section);
    function tell(what) {
      if (what !== "fleet" || !store.fleet) return;
      const { replicas, index_bytes } = store.fleet;
      list.show(replicas);
      const states = new Map();
      for (const { state: name } of replicas) states.set(name, (states.get(name) ?? 0) + 1);
      told.textContent = [...states].map(([name, n]) => `${n} ${name}`).join(", ");
      const own = replicas.find(replica => replica.name === chosen);
      if (panel && own) panel.about(own);
      if (panel && !own && index_bytes !== undefined) panel.title.textContent = `${chosen} (not in the fleet now)`;
    }
    tell("fleet");
    return { tell, escape: close };
  },
};
