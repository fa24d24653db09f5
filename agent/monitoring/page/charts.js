// Numbers as text, the last hour as lines, and how elements are made.
"use strict";

const POINTS = 180; // of a line: more are not to be seen

/** An element with these attributes and children. Text is only ever set as text: it comes from outside. */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same in a drawing. */
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
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

/** The samples of the last hour, as the agent had them, also of its runs before this one. */
export const history = {
  times: [], series: {}, every: 2, kept: 3600, asked: 0,

  add(came) {
    this.every = came.every;
    this.kept = came.kept;
    const before = this.times.length;
    this.times.push(...came.times);
    const known = new Set([...Object.keys(this.series), ...Object.keys(came.series)]);
    for (const component of known) {
      const mine = (this.series[component] ||= {}), theirs = came.series[component] || {};
      for (const counter of new Set([...Object.keys(mine), ...Object.keys(theirs)])) {
        const values = (mine[counter] ||= new Array(before).fill(null));
        values.push(...(theirs[counter] || new Array(came.times.length).fill(null)));
      }
    }
    const old = this.times.findIndex((at) => at >= this.times[this.times.length - 1] - this.kept);
    if (old > 0) {
      this.times.splice(0, old);
      for (const mine of Object.values(this.series)) for (const values of Object.values(mine)) values.splice(0, old);
    }
  },

  /** Values of a gauge, or how many a second a counter counted; null where it is not known. */
  values(component, counter, asRate) {
    const found = this.series[component]?.[counter] || [];
    if (!asRate) return found;
    return found.map((value, i) => {
      const seconds = this.times[i] - this.times[i - 1];
      const unknown = i === 0 || value === null || found[i - 1] === null || seconds > 3 * this.every;
      return unknown ? null : Math.max(0, (value - found[i - 1]) / seconds);
    });
  },

  /** They as the path of a line; it breaks where the agent was down. */
  line(numbers, width, height) {
    const { points, most } = this.points(numbers);
    let path = "", pen = "M", last = null;
    for (const point of points) {
      if (last !== null && point.at - last > Math.max(3 * this.every, (2.5 * this.kept) / POINTS)) pen = "M";
      const x = width * (1 - (this.times[this.times.length - 1] - point.at) / this.kept);
      path += `${pen}${x.toFixed(1)},${(height - 1 - (height - 2) * (point.value / most)).toFixed(1)}`;
      pen = "L";
      last = point.at;
    }
    return path;
  },

  points(numbers) {
    const bucket = this.kept / POINTS, points = [];
    let sum = 0, count = 0, at = 0, slot = null;
    const close = () => { if (count) points.push({ at: at / count, value: sum / count }); sum = count = at = 0; };
    numbers.forEach((value, i) => {
      if (value === null) return;
      const mine = Math.floor(this.times[i] / bucket);
      if (mine !== slot) { close(); slot = mine; }
      sum += value; at += this.times[i]; count += 1;
    });
    close();
    return { points, most: numbers.reduce((most, value) => Math.max(most, value), 1e-9) };
  },
};
