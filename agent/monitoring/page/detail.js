// Details of one component: its problems, charts, last errors, events as they pass, figures and options.
"use strict";

import { Chart } from "./charts.js";
import { withoutCommand } from "./problems.js";
import { sample } from "./sample.js";
import { element, show, table, timeElement } from "./texts.js";

const CHARTS = [ // title, unit, and label by metric
  ["Accepted", "events/s", { EventAcceptedCount: "accepted" }],
  ["Received", "events/s", { EventReceivedCount: "received" }],
  ["Stored", "events/s", { EventPutSuccessCount: "stored" }],
  ["Delivered", "events/s", { EventDrainSuccessCount: "delivered" }],
  ["Lag: not delivered yet", "events", { Lag: "lag" }],
  ["Age of the oldest event that is not delivered", "s", { LagSeconds: "age" }],
  ["Events in the channel", "events", { ChannelSize: "held" }],
  ["Events in the disk overflow", "events", { OverflowSize: "held" }],
  ["Latency of batches", "ms", { LatencyP50Milliseconds: "p50", LatencyP99Milliseconds: "p99" }],
  ["Duration of a batch", "ms", { BatchMilliseconds: "duration" }],
];
export const PROCESS_CHARTS = [
  ["Processor time", "% of a core", { CpuPercent: "CPU" }],
  ["Memory", "B", { MemoryBytes: "resident" }],
  ["File descriptors", "files", { OpenFileCount: "open" }],
  ["Bytes of events", "B/s", { ReceivedBytesCount: "received", TakenBytesCount: "given to sinks" }],
];
const LATENCIES = { source: "Latency from receipt until stored", sink: "Latency from arrival in the channel until delivered" };
const $ = (selector) => document.querySelector(selector);

/** Charts of one component, or of the process, in an element that is its own. */
export class Charts {
  constructor(parent, kinds) {
    this.parent = parent;
    this.kinds = kinds;
    this.charts = new Map();
    this.requested = 0;
    this.generation = 0;
  }

  clear() {
    this.parent.replaceChildren();
    this.charts.clear();
    this.requested = 0;
    this.generation += 1;
  }

  /** Request the series of `component` and draw them, as often as they have new values. */
  async update(fetchJson, metrics, span, kind = "", unit = "events") {
    const generation = this.generation;
    if (Date.now() - this.requested < (span > 3600 ? 60000 : span > 600 ? 10000 : 2000)) return;
    this.requested = Date.now();
    const answer = await fetchJson(`api/history?span=${span}&component=${encodeURIComponent(metrics)}`), own = answer.series[metrics] ?? {};
    if (generation !== this.generation) return; // another component or span was chosen meanwhile
    for (const [title, chartUnit, labels] of this.kinds) {
      const names = Object.keys(labels).filter((name) => name in own);
      if (!names.length || (title.includes("overflow") && !own[names[0]].some(Boolean))) continue;
      if (!this.charts.has(title)) {
        const shown = title.startsWith("Latency") ? LATENCIES[kind] ?? title : title;
        const chart = new Chart(shown, title.startsWith("Lag:") ? unit : chartUnit, names.map((name) => labels[name]));
        this.charts.set(title, chart);
        this.parent.append(chart.figure);
      }
      this.charts.get(title).update(answer.times, names.map((name) => own[name]), answer.every, span, answer.now);
    }
    if (!this.parent.children.length) this.parent.append(element("p", { class: "soft" }, "No values yet: the first come within seconds."));
    else if (this.charts.size) this.parent.querySelector(":scope > p.soft")?.remove();
  }

  redraw() {
    for (const chart of this.charts.values()) chart.draw();
  }
}

const charts = new Charts($("#detail-charts"), CHARTS);
let selected = null;

/** Open the details of a component. */
export function openDetail(node) {
  selected = node;
  charts.clear();
  sample.select(node);
  $("#detail-title").textContent = `${node.name} (${[node.type, ...node.words].join(", ")})`;
  show($("#detail-place"), `${node.id}, ${node.place}`);
  const parts = [];
  for (const component of [node, ...node.interceptors]) {
    const set = Object.entries(component.options).map(([name, value]) => [name, value, "set"]);
    const defaults = Object.entries(component.defaults).map(([name, value]) => [name, value, "default"]);
    const head = component === node ? "Figures" : `Interceptor ${component.name} (${component.type})`;
    parts.push(element("h3", {}, head), element("div", { class: "tables figures-of", "data-metrics": component.metrics }));
    if (component !== node) {
      const button = element("button", { type: "button" }, "Events before and after it");
      button.addEventListener("click", () => { sample.choose(component.id); sample.begin(); $("#sample").scrollIntoView(); });
      parts.push(button);
    }
    parts.push(element("h3", {}, component === node ? "Options" : `Options of ${component.name}`), element("div", { class: "tables" }, table(["Option", "Value", "Origin"], [...set, ...defaults])));
  }
  $("#detail-body").replaceChildren(...parts);
  $("#detail").showModal();
}

/** Show the present values of the open details. */
export async function updateDetail(fetchJson, state, span) {
  const node = selected;
  if (!$("#detail").open || node === null) return;
  const ids = [node.id, ...node.interceptors.map((one) => one.id)];
  const own = state.problems.filter((problem) => ids.includes(problem.component));
  show($("#detail-problems"), own.map((problem) => [problem.severity, problem.title, problem.effect, withoutCommand(problem.error, problem.command)]), (rows) =>
    rows.map(([severity, ...texts]) => element("p", { class: severity }, [...new Set(texts)].filter(Boolean).join(" "))));
  const errors = state.said.filter((entry) => ids.some((id) => entry.component === id || entry.component.startsWith(`${id}-`))).slice(0, 5);
  $("#detail-errors").hidden = !errors.length;
  show($("#detail-errors ol"), errors, (entries) => entries.map((entry) => element("li", { class: entry.level }, timeElement(entry.at), ` ${entry.text}`)));
  if (!String(getSelection())) { // a table that is replaced would lose the selection
    for (const part of document.querySelectorAll(".figures-of")) {
      show(part, Object.entries(state.figures[part.dataset.metrics] || {}), (rows) => [table(["Figure", "Value#"], rows)]);
    }
  }
  await charts.update(fetchJson, node.metrics, span, node.kind, node.lag_unit || "events");
  await sample.update(fetchJson);
}

/** Draw the charts of another span at the next update. */
export function changeSpan() {
  charts.clear();
}

export function redrawDetail() {
  charts.redraw();
}

$("#detail").addEventListener("close", () => sample.end());
