// The lines between the cards.
"use strict";

import { drawn, short } from "./charts.js";

const MOST_LABELS = 60; // of more lines none is labelled: the cards say the same
const PLACES = [0.5, 0.35, 0.65, 0.22, 0.78, 0.12, 0.88];

/** `boxOf` tells where a node's card is, null where it is hidden; `flow` how many events a second go along an edge. */
export function draw(svg, edges, boxOf, flow) {
  const frame = svg.parentElement.getBoundingClientRect();
  const lines = [], labels = [], taken = [];
  const labelled = edges.length <= MOST_LABELS;
  for (const edge of edges) {
    const from = boxOf(edge.start), to = boxOf(edge.end);
    if (!from || !to) continue;
    const curve = bent(edge, from, to, frame), events = flow(edge);
    const kind = ["wire", events > 0 ? "flowing" : "", edge.kind === "events" ? "" : "dashed"].join(" ").trim();
    const head = events > 0 ? "head-flowing" : "head";
    lines.push(drawn("path", { d: path(curve), class: kind, "marker-end": `url(#${head})` }));
    const rows = [edge.label, events === undefined ? "" : `${short(events)}/s`].filter(Boolean);
    if (labelled && rows.length) label(rows, curve, taken, labels);
  }
  const rest = [head("head", "wire-head"), head("head-flowing", "wire-head flowing")];
  svg.replaceChildren(drawn("defs", {}, ...rest), ...lines, ...labels);
}

function head(id, kind) {
  const shape = drawn("path", { d: "M0,0 L8,4 L0,8 z", class: kind });
  return drawn("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto", markerUnits: "userSpaceOnUse" }, shape);
}

function bent(edge, from, to, frame) {
  const middle = (box) => box.top + box.height / 2 - frame.top;
  const y1 = middle(from), y2 = middle(to);
  if (edge.kind === "overflow") { // both stand in one column: around their left edges
    const x1 = from.left - frame.left, x2 = to.left - frame.left;
    return [[x1, y1 + 8], [x1 - 46, y1 + 8], [x2 - 46, y2], [x2 - 2, y2]];
  }
  const back = edge.kind === "topic";
  const x1 = (back ? from.left : from.right) - frame.left, x2 = (back ? to.right + 2 : to.left - 2) - frame.left;
  const bend = (x2 - x1) / 2, aside = back ? 8 : 0; // not on the line of what goes the other way
  return [[x1, y1 + aside], [x1 + bend, y1 + aside], [x2 - bend, y2 + aside], [x2, y2 + aside]];
}

const path = ([a, b, c, d]) => `M${a} C${b} ${c} ${d}`;

function at([a, b, c, d], t) {
  const s = 1 - t, weights = [s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t];
  return [0, 1].map((axis) => weights[0] * a[axis] + weights[1] * b[axis] + weights[2] * c[axis] + weights[3] * d[axis]);
}

/** At spaces, in lines of at most so many characters. */
function broken(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1], longer = last ? `${last} ${word}` : word;
    if (longer.length <= most || !last) lines[lines.length - 1] = longer; else lines.push(word);
  }
  return lines.map((line) => (line.length > most ? `${line.slice(0, most - 1)}…` : line));
}

function label(rows, curve, taken, labels) {
  const room = Math.max(90, Math.abs(curve[3][0] - curve[0][0]));
  const fit = rows.flatMap((row) => broken(row, Math.floor(room / 6))), height = 13 * fit.length;
  const width = 6 * Math.max(...fit.map((row) => row.length)) + 4;
  for (const place of PLACES) {
    const [along, y] = at(curve, place), loop = curve[1][0] < curve[0][0] && curve[2][0] < curve[3][0];
    const x = loop ? Math.min(along, curve[0][0] - width / 2 - 6) : along; // beside the cards, not behind them
    const box = { left: x - width / 2, right: x + width / 2, top: y - height / 2, bottom: y + height / 2 };
    const inside = box.left >= Math.min(curve[0][0], curve[3][0]) - 110 && box.right <= Math.max(curve[0][0], curve[3][0]) + 60;
    if (!inside || taken.some((other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top)) continue;
    taken.push(box);
    const lines = fit.map((row, i) => drawn("tspan", { x: x.toFixed(1), y: (box.top + 10 + 13 * i).toFixed(1) }, row));
    labels.push(drawn("text", {}, ...lines));
    return;
  }
}
