// Elements, numbers with units, and times.
"use strict";

/** Create an HTML element. Children are set as text or nodes, never as HTML: the text may come from an attacker. */
export function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
export function svgElement(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const contents = new WeakMap();

/** Set the children of an element to `render(content)`. Unchanged content is not replaced, to preserve focus and selections. */
export function show(parent, content, render = (text) => [text]) {
  const text = JSON.stringify(content);
  if (contents.get(parent) === text) return;
  contents.set(parent, text);
  parent.replaceChildren(...render(content));
}

/** Create a table. A head that ends in `#` is of a column of numbers. */
export function table(heads, rows) {
  const kind = (head) => (head.endsWith("#") ? { class: "number" } : {});
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col", ...kind(name) }, name.replace("#", ""))));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", kind(heads[i]), cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

export function short(number) {
  if (number === undefined || number === null || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e9) return (number / 1e9).toFixed(1) + " G";
  if (size >= 1e6) return (number / 1e6).toFixed(1) + " M";
  if (size >= 1e4) return (number / 1e3).toFixed(1) + " k";
  return size >= 100 || Number.isInteger(number) ? Math.round(number).toLocaleString("en") : number.toFixed(1);
}

/** Number with a unit, `12.3 kB` or `5 events/s`. */
export function withUnit(number, unit) {
  if (number === undefined || number === null) return "–";
  if (unit === "ms") return brief(number);
  if (unit === "s") return span(number);
  const text = short(number);
  if (unit.startsWith("B")) return /[kMG]$/.test(text) ? text + unit : `${text} ${unit}`;
  return `${text} ${number === 1 ? unit.replace(/^(event|record|file)s/, "$1") : unit}`;
}

export function brief(milliseconds) {
  if (milliseconds === undefined) return "–";
  if (milliseconds >= 10000) return span(milliseconds / 1000);
  if (milliseconds >= 1000) return `${(milliseconds / 1000).toFixed(1)} s`;
  return `${milliseconds.toFixed(milliseconds >= 10 ? 0 : 1)} ms`;
}

export function span(seconds) {
  if (seconds < 0) return "over";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

// --- times

export const clock = { isLocal: stored() === "local" };

function stored() {
  try { return localStorage.getItem("flafka-times"); } catch { return null; } // storage may be forbidden
}

export function setLocal(isLocal) {
  clock.isLocal = isLocal;
  try { localStorage.setItem("flafka-times", isLocal ? "local" : "utc"); } catch { /* the choice lasts as long as the page */ }
}

function parts(seconds) {
  const time = new Date(seconds * 1000), offset = clock.isLocal ? -time.getTimezoneOffset() : 0;
  const [date, rest] = new Date(time.getTime() + offset * 60000).toISOString().split("T");
  const two = (number) => String(Math.floor(Math.abs(number))).padStart(2, "0");
  const zone = clock.isLocal ? `${offset < 0 ? "−" : "+"}${two(offset / 60)}:${two(offset % 60)}` : "UTC";
  return { date, time: rest.slice(0, 8), zone };
}

/** Time with date and zone, `2026-11-30 00:36:56 UTC`. */
export function moment(seconds) {
  const { date, time, zone } = parts(seconds);
  return `${date} ${time} ${zone}`;
}

/** Time of day for an axis, `00:36`, or `00:36:56`. */
export const timeOfDay = (seconds, withSeconds) => parts(seconds).time.slice(0, withSeconds ? 8 : 5);

/** Element with a time, which machines can read. */
export const timeElement = (seconds) => element("time", { datetime: new Date(seconds * 1000).toISOString() }, moment(seconds));
