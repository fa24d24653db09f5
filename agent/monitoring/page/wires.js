// Edges between the cards of the graph, as SVG curves.
"use strict";

import { svgElement, short } from "./texts.js";

const MAX_LABELS = 60; // with more edges, labels would overlap; the cards show the same text
const LABEL_POSITIONS = [0.5, 0.38, 0.62, 0.28, 0.72, 0.18, 0.82, 0.44, 0.56, 0.33, 0.67, 0.23, 0.77, 0.1, 0.9];
const CARD_MARGIN = 1; // of a card that the estimated width of a label may cover

/**
 * Draw the edges. `boxOf` returns the rectangle of a node's card, or null if it is hidden; `flow` the events per second
 * of an edge; `condition` one of `stuck` and `slow`, or an empty text.
 */
export function draw(svg, edges, boxOf, flow, condition) {
  const frame = svg.parentElement.getBoundingClientRect();
  const ends = new Set(edges.flatMap((edge) => [edge.start, edge.end]));
  const taken = [...ends].map(boxOf).filter(Boolean).map((box) => ({ left: box.left - frame.left + CARD_MARGIN, right: box.right - frame.left - CARD_MARGIN,
    top: box.top - frame.top, bottom: box.bottom - frame.top }));
  const lines = [], labels = [];
  const labelled = edges.length <= MAX_LABELS;
  for (const edge of edges) {
    const from = boxOf(edge.start), to = boxOf(edge.end);
    if (!from || !to) continue;
    const curve = bezier(edge, from, to, frame), events = flow(edge);
    const state = condition(edge) || (events > 0 ? "flowing" : "");
    const kind = ["wire", state, edge.kind === "events" ? "" : "dashed"].join(" ").trim();
    const marker = state ? `head-${state}` : "head";
    lines.push(svgElement("path", { d: path(curve), class: kind, "marker-end": `url(#${marker})` }));
    const rows = [edge.label, events === undefined ? "" : `${short(events)}/s`].filter(Boolean);
    if (labelled && rows.length) label(rows, curve, taken, labels, positions(edge, edges));
  }
  const markers = ["", "flowing", "slow", "stuck"].map((state) => arrowHead(state ? `head-${state}` : "head", `wire-head ${state}`));
  svg.replaceChildren(svgElement("defs", {}, ...markers), ...lines, ...labels);
}

/** Positions for a label, best first: of several edges at one card, near the other card, where they are apart. */
function positions(edge, edges) {
  const from = edges.filter((other) => other.start === edge.start).length, to = edges.filter((other) => other.end === edge.end).length;
  if (from === to) return LABEL_POSITIONS;
  return [...LABEL_POSITIONS].sort((a, b) => (to > from ? a - b : b - a)).filter((position) => position >= 0.18 && position <= 0.82).concat([0.1, 0.9]);
}

function arrowHead(id, kind) {
  const shape = svgElement("path", { d: "M0,0 L8,4 L0,8 z", class: kind });
  return svgElement("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto", markerUnits: "userSpaceOnUse" }, shape);
}

function bezier(edge, from, to, frame) {
  const middle = (box) => box.top + box.height / 2 - frame.top;
  const y1 = middle(from), y2 = middle(to);
  if (edge.kind === "overflow") { // both cards are in one column: draw around their left edges
    const x1 = from.left - frame.left, x2 = to.left - frame.left;
    return [[x1, y1 + 8], [x1 - 46, y1 + 8], [x2 - 46, y2], [x2 - 2, y2]];
  }
  const back = edge.kind === "topic";
  const x1 = (back ? from.left : from.right) - frame.left, x2 = (back ? to.right + 2 : to.left - 2) - frame.left;
  const bend = (x2 - x1) / 2, aside = back ? 8 : 0; // apart from the edge in the opposite direction
  return [[x1, y1 + aside], [x1 + bend, y1 + aside], [x2 - bend, y2 + aside], [x2, y2 + aside]];
}

const path = ([a, b, c, d]) => `M${a} C${b} ${c} ${d}`;

function pointOn([a, b, c, d], t) {
  const s = 1 - t, weights = [s * s * s, 3 * s * s * t, 3 * s * t * t, t * t * t];
  return [0, 1].map((axis) => weights[0] * a[axis] + weights[1] * b[axis] + weights[2] * c[axis] + weights[3] * d[axis]);
}

/** Break a text at spaces into lines of at most `length` characters. */
function wrap(text, length) {
  const lines = [""];
  for (const word of text.split(" ")) {
    const last = lines[lines.length - 1], longer = last ? `${last} ${word}` : word;
    if (longer.length <= length || !last) lines[lines.length - 1] = longer; else lines.push(word);
  }
  return lines.map((line) => (line.length > length ? `${line.slice(0, length - 1)}…` : line));
}

function label(rows, curve, taken, labels, places) {
  const room = Math.max(90, Math.abs(curve[3][0] - curve[0][0]));
  const fit = rows.flatMap((row) => wrap(row, Math.floor(room / 6))), height = 13 * fit.length;
  const width = 6 * Math.max(...fit.map((row) => row.length)) + 4;
  for (const position of places) {
    const [along, y] = pointOn(curve, position), loop = curve[1][0] < curve[0][0] && curve[2][0] < curve[3][0];
    const x = loop ? Math.min(along, curve[0][0] - width / 2 - 6) : along; // beside the cards, which would cover the label
    const box = { left: x - width / 2, right: x + width / 2, top: y - height / 2, bottom: y + height / 2 };
    const inside = box.left >= Math.min(curve[0][0], curve[3][0]) - 110 && box.right <= Math.max(curve[0][0], curve[3][0]) + 60;
    if (!inside || taken.some((other) => box.left < other.right && box.right > other.left && box.top < other.bottom && box.bottom > other.top)) continue;
    taken.push(box);
    const lines = fit.map((row, i) => svgElement("tspan", { x: x.toFixed(1), y: (box.top + 10 + 13 * i).toFixed(1) }, row));
    labels.push(svgElement("text", {}, ...lines));
    return;
  }
}
