// The fleet at a glance: the last minute in numbers, and the last hour or day as lines.

import { amount, choice, make, ms, share, watch, whole } from "./tools.js";
import { chart } from "./chart.js";
import { accounts, parts } from "./linter.js";

const COVERS = { hour: 3600, day: 86400 };
const perSecond = value => `${amount(value)}/s`;

const CHARTS = [
  { title: "Requests", write: perSecond, lines: [
    { name: "requests_per_s", title: "ended", kind: "a" },
    { name: "errors_per_s", title: "5xx", kind: "b" },
    { name: "left_per_s", title: "client left", kind: "c" }] },
  { title: "Time to first token", write: ms, lines: [
    { name: "ttft_p50_ms", title: "p50", kind: "a" },
    { name: "ttft_p95_ms", title: "p95", kind: "b" }] },
  { title: "Prompt tokens from cache", write: share, top: 1, lines: [
    { name: "cached_share", title: "reported", kind: "a" },
    { name: "predicted_share", title: "predicted", kind: "b" }] },
  { title: "Tokens", write: perSecond, lines: [
    { name: "prompt_tokens_per_s", title: "prompt", kind: "a" },
    { name: "output_tokens_per_s", title: "generated", kind: "b" }] },
  { title: "Requests at a time", write: amount, lines: [
    { name: "in_flight", title: "in flight", kind: "a" },
    { name: "waiting", title: "waiting for room", kind: "b" }] },
  { title: "Replicas", write: amount, lines: [
    { name: "replicas", title: "all", kind: "a" },
    { name: "healthy", title: "healthy", kind: "c" }] },
];

const TILES = [
  ["Requests", n => [perSecond(n.requests_per_s), `${whole(n.requests_in_flight)} in flight, ${amount(n.waiting)} waiting`]],
  ["Time to first token", n => [ms(n.ttft_p50_ms), `p50; p95 ${ms(n.ttft_p95_ms)}`]],
  ["Prompt tokens from cache", n => [share(n.cached_share), `predicted ${share(n.predicted_share)}`]],
  ["Generated tokens", n => [perSecond(n.output_tokens_per_s), `${perSecond(n.prompt_tokens_per_s)} of prompts`]],
  ["Errors", n => [share(n.error_share), `${perSecond(n.errors_per_s)} with 5xx, ${perSecond(n.shed_per_s)} turned away`]],
];

/** Where prompt tokens came from, over all models; nothing as long as no answer has said it. */
function tokens(root) {
  const section = make("section", "", make("h2", "", "Where prompt tokens came from"));
  const body = make("div", "pad");
  section.append(make("p", "note", "Since the start, of answers that said how many were cached. By model: see the cache linter."), body);
  // whether it can be asked, the connection's own line says
  return watch("/api/prompts", 5000, told => {
    const sum = { cached_tokens: 0, uncached: { new: 0, routing: 0, evicted: 0, volatile: 0 } };
    for (const model of told.models) {
      sum.cached_tokens += model.cached_tokens;
      for (const [name, n] of Object.entries(model.uncached)) sum.uncached[name] = (sum.uncached[name] ?? 0) + n;
    }
    if (!parts(sum).some(([, n]) => n > 0)) return;
    body.replaceChildren(...accounts(sum));
    if (!section.isConnected) root.append(section);
  }, {});
}

export default {
  title: "Overview",
  open(root, store) {
    const tiles = TILES.map(([title, of]) => {
      const [big, small] = [make("div", "big", "–"), make("p", "", " ")];
      return { element: make("section", "tile", make("h2", "", title), big, small), of, big, small };
    });
    const charts = CHARTS.map(chart);
    const switches = choice("How far back", [["hour", "Last hour"], ["day", "Last day"]], store.covers, store.ask);
    const head = make("div", "head", make("h2", "", "Over time"), switches);
    const empty = make("p", "empty", "Nothing was measured yet. Lines begin with the first requests.");
    root.append(make("div", "tiles", ...tiles.map(tile => tile.element)), head, empty,
      make("div", "charts", ...charts.map(one => one.element)));
    const close = tokens(root);
    function tell(what) {
      if (what === "now" && store.now) {
        for (const tile of tiles) {
          const [big, small] = tile.of(store.now);
          tile.big.textContent = big;
          tile.small.textContent = small;
        }
      }
      if (what === "series" && store.series) {
        empty.hidden = store.series.at.length > 0;
        charts.forEach(one => one.show(store.series, COVERS[store.covers]));
      }
    }
    tell("now");
    tell("series");
    return { tell, close };
  },
};
