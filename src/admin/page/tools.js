// Elements, words for numbers, and tables. Text goes into elements as text, never as markup: names come from engines and
// from configurations.

export const at = id => document.getElementById(id);

/** An element of a class with children; null and undefined are left out. */
export function make(tag, kind, ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  element.append(...children.filter(child => child !== null && child !== undefined));
  return element;
}

export function button(text, press, kind = "") {
  const element = make("button", kind, text);
  element.type = "button";
  element.addEventListener("click", press);
  return element;
}

export async function get(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = new Error(body?.error?.message ?? `${path} answers ${answer.status}`);
    error.status = answer.status;
    throw error;
  }
  return body;
}

/**
 * Asks `path` at once and then every so many milliseconds while somebody looks, one question at a time, and gives each answer
 * to `show`; what goes wrong stands in `error`, unless `gone` takes it. Returns what ends it.
 */
export function watch(path, every, show, error, gone = () => false) {
  let [isOpen, isAsking] = [true, false];
  async function ask() {
    if (isAsking || document.hidden) return;
    isAsking = true;
    try {
      const answer = await get(path);
      if (!isOpen) return;
      show(answer);
      error.textContent = "";
    } catch (problem) {
      if (isOpen && !gone(problem)) error.textContent = `It cannot be asked: ${problem.message}`;
    } finally {
      isAsking = false;
    }
  }
  ask();
  const timer = setInterval(ask, every);
  document.addEventListener("visibilitychange", ask);
  return () => {
    isOpen = false;
    clearInterval(timer);
    document.removeEventListener("visibilitychange", ask);
  };
}

// words for numbers; what is not known is a dash
const NONE = "–";
const known = show => value => (value === null || value === undefined || Number.isNaN(value) ? NONE : show(value));
const digits = (n, most) => n.toLocaleString("en", { maximumFractionDigits: most });
export const whole = known(n => digits(Math.round(n), 0));
export const amount = known(n => {
  const size = Math.abs(n);
  if (size >= 1e9) return digits(n / 1e9, 1) + " G";
  if (size >= 1e6) return digits(n / 1e6, size < 1e7 ? 2 : 1) + " M";
  if (size >= 1e4) return digits(n / 1e3, 1) + " k";
  return digits(n, size >= 100 ? 0 : size >= 10 ? 1 : 2);
});
export const ms = known(n => {
  if (n === 0) return "0 ms";
  if (n < 10) return digits(n, 1) + " ms";
  if (n < 2000) return digits(n, 0) + " ms";
  return n < 600000 ? digits(n / 1000, n < 10000 ? 2 : 1) + " s" : digits(n / 60000, 1) + " min";
});
export const share = known(n => digits(100 * n, n > 0 && n < 0.1 ? 1 : 0) + " %");
export const bytes = known(n => {
  if (n < 1024) return digits(n, 0) + " B";
  if (n < 1048576) return digits(n / 1024, n < 10240 ? 1 : 0) + " KiB";
  if (n < 1073741824) return digits(n / 1048576, n < 10485760 ? 1 : 0) + " MiB";
  return digits(n / 1073741824, 1) + " GiB";
});
export const span = known(s => {
  if (s < 1) return "now";
  if (s < 90) return Math.round(s) + " s";
  if (s < 5400) return Math.round(s / 60) + " min";
  return s < 172800 ? digits(s / 3600, 1) + " h" : digits(s / 86400, 1) + " days";
});
export const ago = known(s => (s < 1 ? "now" : span(s) + " ago"));
export const clock = (s, withSeconds = false) => new Date(1000 * s).toLocaleTimeString("en-GB",
  { hour: "2-digit", minute: "2-digit", ...(withSeconds ? { second: "2-digit" } : {}) });
export const word = text => (text === null || text === undefined || text === "" ? NONE : String(text).replaceAll("_", " "));

/** A share as a number on a bar. */
export function bar(value) {
  if (value === null || value === undefined) return make("span", "faint", NONE);
  const element = make("span", "share", share(value));
  element.style.setProperty("--part", Math.round(100 * Math.min(1, value)) + "%");
  return element;
}

/** A whole in parts: [class, size, name]. */
export function stack(parts, of, small) {
  const element = make("div", small ? "stack small" : "stack");
  for (const [kind, size, name] of parts) {
    const part = make("i", kind);
    part.style.setProperty("--part", (of > 0 ? (100 * Math.max(0, size)) / of : 0) + "%");
    part.title = name;
    element.append(part);
  }
  element.setAttribute("aria-hidden", "true");
  return element;
}

/** The mark and the words of a state. */
export function state(of, reason) {
  const [kind, mark] = { healthy: ["good", "●"], recovering: ["warn", "◐"], draining: ["warn", "◆"] }[of] ?? ["bad", "▲"];
  return make("span", kind, `${mark} ${word(of)}${reason ? `: ${word(reason)}` : ""}`);
}

/** Name and value pairs; pairs without a value are left out. */
export function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) {
    if (value === null || value === undefined) continue;
    list.append(make("dt", "", name), make("dd", "", value));
  }
  return list;
}

/**
 * A table that changes in place, so that focus and selection stay. Columns: { head, unit, short, kind, of }, where `short` is
 * the unit where rows are cards, and `of` makes the text or the element of a row's cell; `seen` says when an element is another (its text does, unless given).
 */
export function table({ columns, key, none, cards = true }) {
  const element = make("table", cards ? "cards" : "");
  element.setAttribute("role", "table");
  const head = make("tr");
  head.setAttribute("role", "row");
  for (const column of columns) {
    const cell = make("th", column.kind ?? "", column.head, column.unit ? make("small", "", column.unit) : null);
    cell.scope = "col";
    cell.setAttribute("role", "columnheader");
    head.append(cell);
  }
  const body = make("tbody");
  element.append(make("thead", "", head), body);
  const lines = new Map();
  const empty = make("tr", "", make("td", "none word faint", none));
  empty.firstChild.colSpan = columns.length;

  function draw(line, row) {
    columns.forEach((column, n) => {
      const cell = line.children[n];
      const content = column.of(row);
      const seen = column.seen ? column.seen(row) : typeof content === "string" ? content : content.textContent;
      if (cell.seen !== seen) {
        cell.seen = seen;
        cell.replaceChildren(content);
      }
    });
  }
  function fresh() {
    const line = make("tr");
    line.setAttribute("role", "row");
    for (const column of columns) {
      const cell = make("td", column.kind ?? "");
      cell.dataset.head = column.head;
      cell.dataset.unit = column.short ?? "";
      cell.setAttribute("role", "cell");
      line.append(cell);
    }
    return line;
  }
  return {
    element: make("div", "wide", element),
    line: name => lines.get(name),
    /** `noMatch` says why there is nothing, where that is the filter's doing. */
    show(rows, noMatch) {
      const names = new Set(rows.map(key));
      for (const [name, line] of lines) {
        if (!names.has(name)) {
          line.remove();
          lines.delete(name);
        }
      }
      let place = body.firstChild === empty ? null : body.firstChild;
      empty.remove();
      for (const row of rows) {
        const line = lines.get(key(row)) ?? fresh();
        lines.set(key(row), line);
        draw(line, row);
        if (line === place) place = place.nextSibling;
        else body.insertBefore(line, place);
      }
      if (!rows.length) {
        empty.firstChild.textContent = noMatch ?? none;
        body.append(empty);
      }
    },
  };
}

/** A switch between a few choices. */
export function choice(name, choices, chosen, choose) {
  const group = make("div", "head");
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", name);
  const buttons = choices.map(([value, text]) => {
    const element = button(text, () => {
      buttons.forEach(other => other.setAttribute("aria-pressed", String(other === element)));
      choose(value);
    });
    element.setAttribute("aria-pressed", String(value === chosen));
    return element;
  });
  group.append(...buttons);
  return group;
}
