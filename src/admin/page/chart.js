// Lines over time, drawn as SVG, and the same as a table. A pointer or the arrow keys read single values.

import { clock, make } from "./tools.js";

const SVG = document.getElementById("pencil").namespaceURI;
const LEFT = 58;
const BOTTOM = 20;
const TOP = 6;
/** The least that a chart covers, in seconds. */
const LEAST = 300;
/** Rows of a chart that is read as a table. */
const ROWS = 60;

function draw(tag, kind, attributes) {
  const element = document.createElementNS(SVG, tag);
  if (kind) element.setAttribute("class", kind);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

function label(x, y, text, anchor) {
  const element = draw("text", "", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

/** The least round number that is not below `value`. */
function roundUp(value) {
  if (!(value > 0)) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map(n => n * unit).find(n => n >= value * 0.999);
}

/**
 * A chart: its title, how a value is written with its unit, and its lines as { name, title, kind }, where `name` is a member
 * of the values and `kind` one of a, b, c and d. `top` is the highest value there can be, if there is one.
 */
export function chart({ title, write, lines, top }) {
  const plot = draw("svg", "plot", { tabindex: 0, role: "img" });
  const readout = make("div", "readout");
  readout.setAttribute("aria-live", "polite");
  const body = make("tbody");
  const head = make("tr", "", ...["time", ...lines.map(line => line.title)].map(text => make("th", "", text)));
  [...head.children].forEach(cell => (cell.scope = "col"));
  const details = make("details", "", make("summary", "", "as a table"),
    make("div", "wide", make("table", "", make("thead", "", head), body)));
  const keys = lines.map(line => {
    const sample = draw("svg", "", { viewBox: "0 0 24 8", "aria-hidden": "true" });
    sample.append(draw("line", `line ${line.kind}`, { x1: 0, x2: 24, y1: 4, y2: 4 }));
    const value = make("b", "", "–");
    return { element: make("span", "key", sample, line.title, value), value };
  });
  const caption = make("figcaption", "", make("b", "", title), ...keys.map(key => key.element));
  const figure = make("figure", "", caption, plot, readout, details);
  let data = { at: [], values: {}, step_s: 1 };
  let covers = 3600;
  let cursor = null;

  const of = (line, n) => data.values[line.name]?.[n] ?? null;
  const last = line => data.at.map((_, n) => of(line, n)).findLast(value => value !== null) ?? null;

  function paint() {
    const width = plot.clientWidth || 440;
    const height = plot.clientHeight || 170;
    plot.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const end = (data.at.at(-1) ?? Date.now() / 1000) + data.step_s;
    // of a young process, what there is
    const watched = Math.min(covers, Math.max(LEAST, end - (data.at[0] ?? end)));
    const begin = end - watched;
    const most = Math.max(0, ...lines.flatMap(line => data.at.map((_, n) => of(line, n) ?? 0)));
    const high = top ?? roundUp(most);
    const x = s => LEFT + ((s - begin) / watched) * (width - LEFT - 8);
    const y = value => TOP + (1 - value / high) * (height - TOP - BOTTOM);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      parts.push(draw("line", "grid", { x1: LEFT, x2: width - 8, y1: y(part * high), y2: y(part * high) }));
      parts.push(label(LEFT - 6, y(part * high) + 4, write(part * high), "end"));
    }
    const marks = width < 420 ? 3 : 5;
    for (let n = 0; n < marks; n++) {
      const s = begin + (watched * n) / (marks - 1);
      parts.push(label(x(s), height - 4, clock(s), n === 0 ? "start" : n === marks - 1 ? "end" : "middle"));
    }
    for (const line of lines) {
      let path = "";
      let before = null;
      data.at.forEach((s, n) => {
        const value = of(line, n);
        if (value === null || s < begin) return (before = null);
        const goesOn = before !== null && s - before <= 1.5 * data.step_s;
        const [cx, cy] = [x(s).toFixed(1), y(Math.min(value, high)).toFixed(1)];
        path += `${goesOn ? "L" : "M"}${cx} ${cy}`;
        before = s;
        // a value without neighbours is a dot
        const isLast = of(line, n + 1) === null || data.at[n + 1] - s > 1.5 * data.step_s;
        if (!goesOn && isLast) parts.push(draw("circle", `dot ${line.kind}`, { cx, cy, r: 2.5 }));
      });
      parts.push(draw("path", `line ${line.kind}`, { d: path || "M0 0" }));
    }
    if (cursor !== null && data.at[cursor] >= begin) {
      const s = data.at[cursor];
      parts.push(draw("line", "cursor", { x1: x(s), x2: x(s), y1: TOP, y2: height - BOTTOM }));
      for (const line of lines) {
        const value = of(line, cursor);
        if (value !== null) parts.push(draw("circle", `dot ${line.kind}`, { cx: x(s), cy: y(Math.min(value, high)), r: 3 }));
      }
    }
    plot.replaceChildren(...parts);
    plot.place = event => {
      const s = begin + ((event.offsetX - LEFT) / (width - LEFT - 8)) * watched;
      const near = data.at.map((t, n) => [Math.abs(t - s), n]).sort((a, b) => a[0] - b[0])[0];
      return near ? near[1] : null;
    };
  }

  function read() {
    if (cursor === null || data.at[cursor] === undefined) return (readout.textContent = "");
    const told = lines.map(line => `${line.title} ${write(of(line, cursor))}`).join(", ");
    readout.textContent = `${clock(data.at[cursor], true)}: ${told}`;
  }

  function tabulate() {
    if (!details.open) return;
    const every = Math.max(1, Math.ceil(data.at.length / ROWS));
    const rows = data.at.map((s, n) => [s, n]).filter(([, n]) => (data.at.length - 1 - n) % every === 0).reverse();
    body.replaceChildren(...rows.map(([s, n]) =>
      make("tr", "", ...[clock(s, true), ...lines.map(line => write(of(line, n)))].map(text => make("td", "", text)))));
  }

  function move(to) {
    cursor = to === null || !data.at.length ? null : Math.max(0, Math.min(data.at.length - 1, to));
    paint();
    read();
  }

  plot.addEventListener("pointermove", event => move(plot.place(event)));
  plot.addEventListener("pointerleave", () => move(null));
  plot.addEventListener("blur", () => move(null));
  plot.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined) return;
    event.preventDefault();
    move((cursor ?? data.at.length) + by);
  });
  details.addEventListener("toggle", tabulate);
  new ResizeObserver(paint).observe(plot);

  return {
    element: figure,
    show(next, seconds) {
      // who reads a value goes on reading that one, however many have come since
      const readAt = cursor === null ? -1 : next.at.indexOf(data.at[cursor]);
      cursor = readAt < 0 ? null : readAt;
      [data, covers] = [next, seconds];
      keys.forEach((key, n) => (key.value.textContent = write(last(lines[n]))));
      const told = lines.map(line => `${line.title} ${write(last(line))}`).join(", ");
      plot.setAttribute("aria-label", `${title} over time, the last values being: ${told}. Arrow keys read others.`);
      paint();
      read();
      tabulate();
    },
  };
}
