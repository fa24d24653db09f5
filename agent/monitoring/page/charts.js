// Time series: the last hour of all components for the cards, and charts with axes of a chosen span.
"use strict";

import { element, moment, show, svgElement, timeOfDay, withUnit } from "./texts.js";

const HEIGHT = 150, LEFT = 70, CHARACTER = 6.5, TICK = 40, RIGHT = 12, TOP = 10, BOTTOM = 22;

/** Main series of all components in the last hour. */
export const history = {
  times: [], series: {}, every: 10, span: 3600,

  add(update) {
    this.every = update.every;
    this.span = update.span;
    const before = this.times.length;
    this.times.push(...update.times);
    for (const component of new Set([...Object.keys(this.series), ...Object.keys(update.series)])) {
      const old = (this.series[component] ||= {}), added = update.series[component] || {};
      for (const metric of new Set([...Object.keys(old), ...Object.keys(added)])) {
        const values = (old[metric] ||= new Array(before).fill(null));
        values.push(...(added[metric] || new Array(update.times.length).fill(null)));
      }
    }
    const expired = this.times.findIndex((time) => time >= this.times[this.times.length - 1] - this.span);
    if (expired > 0) {
      this.times.splice(0, expired);
      for (const series of Object.values(this.series)) for (const values of Object.values(series)) values.splice(0, expired);
    }
  },

  /** Path of a component's main series, without axes. */
  line(component, metric, width, height) {
    const values = this.series[component]?.[metric] || [], maximum = Math.max(1e-9, ...values.map((value) => value ?? 0));
    const end = this.times[this.times.length - 1];
    return path(this.times, values, this.every, (time) => width * (1 - (end - time) / this.span), (value) => height - 1 - (height - 2) * (value / maximum));
  },
};

/** Path of a line through the values, with gaps for the times when the agent was down. */
function path(times, values, every, x, y) {
  let text = "", pen = "M", last = null;
  values.forEach((value, i) => {
    if (value === null) return;
    if (last !== null && times[i] - last > 3 * every) pen = "M";
    text += `${pen}${x(times[i]).toFixed(1)},${y(value).toFixed(1)}`;
    pen = "L";
    last = times[i];
  });
  return text;
}

/** Steps of an axis from 0 to at least `maximum`: three or four round numbers. */
export function steps(maximum, isWhole) {
  const least = Math.max(maximum, isWhole ? 3 : 1e-3) / 4, size = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * size).find((candidate) => candidate >= least);
  const all = [0];
  while (all[all.length - 1] < maximum || all.length < 2) all.push(all.length * step);
  return all;
}

/** Times for the axis: at most `number`, at whole units of the clock. */
function ticks(start, end, number) {
  const units = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 14400, 21600];
  const unit = units.find((candidate) => (end - start) / candidate <= number) ?? 21600;
  const all = [];
  for (let time = Math.ceil(start / unit) * unit; time <= end; time += unit) all.push(time);
  return all;
}

/** Chart with axes, units, a legend and the values under the pointer. It is created once, and keeps its pointer. */
export class Chart {
  constructor(title, unit, labels) {
    this.title = title;
    this.unit = unit;
    this.labels = labels;
    this.data = null;
    this.pointed = null; // time under the pointer
    this.svg = svgElement("svg", { class: "chart", role: "slider", tabindex: "0", height: HEIGHT, "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0" });
    this.readout = element("p", { class: "readout" });
    const legend = labels.length > 1 ? labels.map((label, i) => element("span", { class: `legend line-${i + 1}` }, label)) : [];
    this.figure = element("figure", {}, element("figcaption", {}, element("b", {}, title), " ", ...legend), this.svg, this.readout);
    this.svg.addEventListener("pointermove", (event) => this.pointAt(event.clientX));
    this.svg.addEventListener("pointerdown", (event) => this.pointAt(event.clientX));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    new ResizeObserver(() => { if (this.data && this.svg.clientWidth !== this.width) this.draw(); }).observe(this.svg);
  }

  /** Show `series`, one list of values a label. `times`, `every` and `span` are in seconds. */
  update(times, series, every, span, end) {
    this.data = { times, series, every, span, end };
    this.draw();
  }

  draw() {
    const { times, series, every, span, end } = this.data, start = end - span;
    this.width = this.svg.clientWidth;
    const width = Math.max(240, this.width || 600), axisUnit = this.unit.replace(/ of .*/, ""), known = series.flat().filter((value) => value !== null);
    const rows = steps(Math.max(0, ...known), /event|record|file/.test(this.unit) && !this.unit.includes("/")), top = rows[rows.length - 1];
    const names = rows.map((row) => (row || !/^(s|ms)$/.test(this.unit) ? withUnit(row, axisUnit) : `0 ${this.unit}`));
    const left = Math.max(LEFT, 10 + CHARACTER * Math.max(...names.map((name) => name.length)));
    const x = (time) => left + (width - left - RIGHT) * ((time - start) / span);
    const y = (value) => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value / top);
    const parts = [];
    for (const [i, row] of rows.entries()) {
      parts.push(svgElement("line", { class: "grid", x1: left, x2: width - RIGHT, y1: y(row), y2: y(row) }));
      parts.push(svgElement("text", { class: "row", x: left - 6, y: y(row) + 4 }, names[i]));
    }
    for (const time of ticks(start, end, Math.min(7, (width - left - RIGHT) / TICK)).filter((tick) => x(tick) > left + 14 && x(tick) < width - RIGHT - 14)) {
      parts.push(svgElement("line", { class: "grid", x1: x(time), x2: x(time), y1: TOP, y2: HEIGHT - BOTTOM }));
      parts.push(svgElement("text", { class: "tick", x: x(time), y: HEIGHT - 6 }, timeOfDay(time, false)));
    }
    series.forEach((values, i) => parts.push(svgElement("path", { class: `line line-${i + 1}`, d: path(times, values, every, x, y) })));
    if (!known.length) parts.push(svgElement("text", { class: "none", x: (left + width) / 2, y: HEIGHT / 2 }, "no values in this time"));
    this.marker = svgElement("line", { class: "marker", y1: TOP, y2: HEIGHT - BOTTOM });
    this.x = x;
    this.left = left;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const latest = series.map((values, i) => `${this.labels[i]} ${withUnit(values[values.length - 1], this.unit)}`);
    const highest = known.length ? withUnit(Math.max(...known), this.unit) : "–";
    this.svg.setAttribute("aria-label", `${this.title}: now ${latest.join(", ")}; highest ${highest}`);
    this.svg.replaceChildren(...parts, this.marker);
    this.point(this.pointed);
  }

  pointAt(clientX) {
    if (!this.data) return;
    const box = this.svg.getBoundingClientRect(), { span, end } = this.data;
    const share = (clientX - box.left - this.left) / Math.max(1, box.width - this.left - RIGHT);
    this.point(end - span + span * Math.min(1, Math.max(0, share)));
  }

  onKey(event) {
    const { times } = this.data ?? { times: [] }, moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !times.length) return;
    event.preventDefault();
    const index = this.pointed === null ? times.length - 1 : this.nearest(this.pointed);
    this.point(times[Math.min(times.length - 1, Math.max(0, index + moves[event.key]))]);
  }

  nearest(time) {
    const { times } = this.data;
    return times.reduce((best, candidate, i) => (Math.abs(candidate - time) < Math.abs(times[best] - time) ? i : best), 0);
  }

  /** Show the values at a time, or the latest ones for null. */
  point(time) {
    if (!this.data) return;
    this.pointed = time;
    const { times, series } = this.data;
    this.marker.setAttribute("visibility", time === null || !times.length ? "hidden" : "visible");
    if (!times.length) { show(this.readout, ""); return; }
    const index = time === null ? times.length - 1 : this.nearest(time);
    for (const side of ["x1", "x2"]) this.marker.setAttribute(side, this.x(times[index]));
    const values = series.map((list, i) => `${this.labels.length > 1 ? `${this.labels[i]} ` : ""}${withUnit(list[index], this.unit)}`);
    const text = `${time === null ? "now" : moment(times[index])}: ${values.join(", ")}`;
    show(this.readout, text);
    for (const [name, value] of [["max", times.length - 1], ["now", index], ["text", text]]) this.svg.setAttribute(`aria-value${name}`, value);
  }
}
