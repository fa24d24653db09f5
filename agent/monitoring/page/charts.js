// Numbers as text, time series of the last hour as lines, and helpers that create elements.
"use strict";

const POINTS = 180; // of a line; more would not be visible

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

export function short(number) {
  if (number === undefined || number === null || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e9) return (number / 1e9).toFixed(1) + " G";
  if (size >= 1e6) return (number / 1e6).toFixed(1) + " M";
  if (size >= 1e4) return (number / 1e3).toFixed(1) + " k";
  return size >= 100 || Number.isInteger(number) ? Math.round(number).toLocaleString("en") : number.toFixed(1);
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

/** Samples of the last hour, from this run of the agent and from earlier ones. */
export const history = {
  times: [], series: {}, every: 2, kept: 3600, requested: 0,

  add(update) {
    this.every = update.every;
    this.kept = update.kept;
    const before = this.times.length;
    this.times.push(...update.times);
    const components = new Set([...Object.keys(this.series), ...Object.keys(update.series)]);
    for (const component of components) {
      const old = (this.series[component] ||= {}), added = update.series[component] || {};
      for (const counter of new Set([...Object.keys(old), ...Object.keys(added)])) {
        const values = (old[counter] ||= new Array(before).fill(null));
        values.push(...(added[counter] || new Array(update.times.length).fill(null)));
      }
    }
    const expired = this.times.findIndex((time) => time >= this.times[this.times.length - 1] - this.kept);
    if (expired > 0) {
      this.times.splice(0, expired);
      for (const series of Object.values(this.series)) for (const values of Object.values(series)) values.splice(0, expired);
    }
  },

  /** Values of a gauge, or the rate per second of a counter; null if unknown. */
  values(component, counter, asRate) {
    const values = this.series[component]?.[counter] || [];
    if (!asRate) return values;
    return values.map((value, i) => {
      const seconds = this.times[i] - this.times[i - 1];
      const unknown = i === 0 || value === null || values[i - 1] === null || seconds > 3 * this.every;
      return unknown ? null : Math.max(0, (value - values[i - 1]) / seconds);
    });
  },

  /** Path of a line through the values, with gaps for the times when the agent was down. */
  line(numbers, width, height) {
    const { points, maximum } = this.points(numbers);
    let path = "", pen = "M", last = null;
    for (const point of points) {
      if (last !== null && point.time - last > Math.max(3 * this.every, (2.5 * this.kept) / POINTS)) pen = "M";
      const x = width * (1 - (this.times[this.times.length - 1] - point.time) / this.kept);
      path += `${pen}${x.toFixed(1)},${(height - 1 - (height - 2) * (point.value / maximum)).toFixed(1)}`;
      pen = "L";
      last = point.time;
    }
    return path;
  },

  points(numbers) {
    const bucket = this.kept / POINTS, points = [];
    let sum = 0, count = 0, time = 0, slot = null;
    const close = () => { if (count) points.push({ time: time / count, value: sum / count }); sum = count = time = 0; };
    numbers.forEach((value, i) => {
      if (value === null) return;
      const current = Math.floor(this.times[i] / bucket);
      if (current !== slot) { close(); slot = current; }
      sum += value; time += this.times[i]; count += 1;
    });
    close();
    return { points, maximum: numbers.reduce((maximum, value) => Math.max(maximum, value), 1e-9) };
  },
};
