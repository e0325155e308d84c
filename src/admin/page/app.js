// The frame: which view is shown, what the server tells, and whether it still does.

import { at, bytes, get, make, span, whole, word } from "./tools.js";
import overview from "./overview.js";
import fleet from "./fleet.js";
import decisions from "./decisions.js";
import prefixes from "./prefixes.js";
import linter from "./linter.js";
import settings from "./settings.js";

/**
 * A view: `title`; `open(root, store, rest)` fills the element and may return { tell(what), close() }. `rest` is what stands
 * in the address after the name of the view. `tell` is called when the store has changed: with `now`, `fleet`,
 * `decisions` or `series`.
 */
const VIEWS = { overview, fleet, decisions, prefixes, linter, settings };
/** Seconds of silence after which the connection counts as lost. */
const SILENCE = 6;

const store = { now: null, fleet: null, decisions: null, series: null, covers: "hour", heard: 0, ask: askSeries };
let shown = null;

function facts() {
  const { now, fleet } = store;
  if (!now) return;
  at("version").textContent = now.version;
  const fact = (name, value, kind = "") => make("span", "", `${name} `, make("b", kind, value));
  const replicas = fleet?.replicas ?? [];
  const healthy = replicas.filter(replica => replica.state === "healthy").length;
  const kind = { ok: "good", degraded: "warn" }[now.health] ?? "bad";
  const mark = { ok: "●", degraded: "◐" }[now.health] ?? "▲";
  at("facts").replaceChildren(
    fact("fleet", `${mark} ${now.health}, ${healthy} of ${replicas.length} healthy`, kind),
    fact("policy", word(now.policy)),
    fact("in flight", whole(now.requests_in_flight)),
    fact("prefix index", `${whole(now.index_blocks)} blocks, ${bytes(now.index_bytes)}`),
  );
  const alarms = [];
  if (now.fail_open) alarms.push("Fail open: some requests find no healthy replica, so that all are tried.");
  if (now.draining) alarms.push("This process is draining: another one serves, or it ends soon.");
  at("alarm").replaceChildren(...alarms.map(alarm => make("div", "", alarm)));
  at("alarm").hidden = !alarms.length;
}

function tell(what) {
  if (what === "now" || what === "fleet") facts();
  shown?.tell?.(what);
}

async function askSeries(covers = store.covers) {
  store.covers = covers;
  try {
    const series = await get(`/api/series?span=${covers}`);
    // another choice may have been made meanwhile
    if (store.covers !== covers) return;
    store.series = series;
    tell("series");
  } catch {
    // the connection's own line says so; the next try comes soon
  }
}

/** What stands in the address, which anybody may have written. */
function place() {
  try {
    return decodeURIComponent(location.hash.slice(1)).split("/");
  } catch {
    return ["overview"];
  }
}

function open() {
  const [name, ...rest] = place();
  // the way past the navigation: what is shown stays, if anything is
  if (name === "view" && shown) return at("view").focus();
  const isView = Object.hasOwn(VIEWS, name);
  const view = isView ? VIEWS[name] : overview;
  shown?.close?.();
  const root = at("view");
  root.replaceChildren();
  document.title = `${view.title} · ramjet`;
  for (const link of document.querySelectorAll("nav a")) {
    const isHere = link.hash === `#${isView ? name : "overview"}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
    if (isHere) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  shown = view.open(root, store, rest.join("/")) ?? {};
}

function connect() {
  const events = new EventSource("/api/events");
  for (const what of ["now", "fleet", "decisions"]) {
    events.addEventListener(what, event => {
      store[what] = JSON.parse(event.data);
      store.heard = Date.now();
      tell(what);
      if (what === "now") tellLink();
    });
  }
  events.onerror = () => {
    tellLink();
    // a refusal ends it for good; a process that follows this one answers soon
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, 2000);
  };
}

function tellLink() {
  const silent = (Date.now() - store.heard) / 1000;
  const link = at("link");
  const isLost = silent > SILENCE;
  const text = !store.heard ? "connecting…" : isLost ? `▲ connection lost ${span(silent)} ago, trying again` : "● live";
  if (link.textContent !== text) link.textContent = text;
  // what is shown is what was known then
  document.body.classList.toggle("stale", isLost && store.heard > 0);
  link.className = isLost && store.heard ? "link bad" : "link";
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.("input, select, textarea");
  if (event.key === "Escape") return shown?.escape?.();
  if (typing) return;
  const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
  if (link) {
    location.hash = link.hash;
    at("view").focus();
  } else if (event.key === "/") {
    const filter = document.querySelector("main input[type=search]");
    if (filter) {
      event.preventDefault();
      filter.focus();
    }
  }
}

addEventListener("hashchange", open);
addEventListener("keydown", press);
setInterval(tellLink, 1000);
setInterval(() => document.hidden || askSeries(), 10000);
open();
connect();
askSeries();
