// The page of one agent: requests `api/state` every two seconds and shows it.
"use strict";

import { brief, svgElement, element, history, short, span } from "./charts.js";
import { sample } from "./sample.js";
import { draw } from "./wires.js";

const STATE_INTERVAL_MS = 2000, HISTORY_INTERVAL_MS = 10000, FILES_INTERVAL_MS = 4000;
const DENSE = 30; // number of components of a kind from which on each card is one line
const KINDS = ["source", "channel", "sink"];
const MAIN = { source: "EventAcceptedCount", channel: "EventPutSuccessCount", sink: "EventDrainSuccessCount" };
const CHARTS = {
  EventAcceptedCount: ["events/s accepted", true], EventReceivedCount: ["events/s", true],
  EventPutSuccessCount: ["events/s stored", true], EventDrainSuccessCount: ["events/s delivered", true],
  ChannelSize: ["events in the channel", false], Lag: ["lag", false], LagSeconds: ["lag in seconds", false],
  BatchMilliseconds: ["milliseconds a batch", false],
};

const $ = (selector) => document.querySelector(selector);
const cards = new Map(), nodes = new Map(), contents = new WeakMap();
let graph = null, state = null, selected = null, filesRequested = 0, updates = 0;

const figure = (node, name) => { const v = state.figures[node.metrics]?.[name]; return v === undefined ? undefined : Number(v); };
const rate = (node, name) => state.rates[node.metrics]?.[name];
const reason = (node) => state.failing[node.metrics] || state.degraded[node.metrics] || state.standby?.[node.metrics] || "";
const health = (node) => ["failing", "degraded", "standby"].find((kind) => node.metrics in (state[kind] ?? {})) || "ok";
const onSpark = (node) => node.words.includes("on Spark");

/** Set the children of an element to `render(content)`. Unchanged content is not replaced, to preserve focus and selections. */
function show(parent, content, render) {
  const text = JSON.stringify(content);
  if (contents.get(parent) === text) return;
  contents.set(parent, text);
  parent.replaceChildren(...render(content));
}

// --- cards

function figures(node) {
  const rows = [];
  const add = (label, value, bad = false) => { if (value !== undefined) rows.push([value, label, bad]); };
  const addNonzero = (label, name, form = short, bad = false) => { const v = figure(node, name); if (v) add(label.replace("(s)", v === 1 ? "" : "s"), form(v), bad); };
  if (node.kind === "source") {
    add("events/s", short(rate(node, MAIN.source)));
    addNonzero("events", MAIN.source);
    const limit = figure(node, "OpenConnectionLimit");
    addNonzero(limit ? "connections" : "connection(s)", "OpenConnectionCount", (v) => (limit ? `${short(v)} of ${short(limit)}` : short(v)));
    addNonzero("file(s)", "FollowedFileCount");
    addNonzero("datagram(s) dropped", "KernelDropCount", short, true);
    if (figure(node, "UnacknowledgedSeconds") > 5) addNonzero("not stored yet", "UnacknowledgedSeconds", span, true);
  } else if (node.kind === "channel") {
    add("in/s", short(rate(node, MAIN.channel)));
    const out = rate(node, "EventTakeSuccessCount");
    if (out) add("out/s", short(out));
    const size = figure(node, "ChannelSize");
    if (size || figure(node, "ChannelCapacity")) add("events held", short(size));
    addNonzero("full", "ChannelFillPercentage", (v) => `${v.toFixed(0)} %`);
    if (figure(node, "Overflowing")) add("in the overflow", short(figure(node, "OverflowSize")), true);
    addNonzero("broker(s) down", "BrokersDown", short, true);
    addNonzero("partition(s) under-replicated", "UnderReplicatedPartitions", short, true);
  } else {
    add("events/s", short(rate(node, MAIN.sink)));
    addNonzero("events", MAIN.sink);
    const lag = figure(node, "Lag");
    add("lag", lag === undefined ? "unknown" : `${short(lag)} ${node.lag_unit || "events"}`);
    addNonzero("behind", "LagSeconds", span);
    const left = figure(node, "RetentionSecondsLeft");
    if (left < 86400) add("until Kafka deletes the oldest", span(left), true);
  }
  addNonzero("a batch", "BatchMilliseconds", brief);
  addNonzero(node.kind === "sink" ? "dead letter(s)" : "rejected", "EventRejectedCount", short, true);
  const next = figure(node, "RetryTime");
  if (next) add(`until attempt ${figure(node, "RetryAttempt") + 1}`, span(Math.max(0, next / 1000 - state.time)));
  return rows;
}

function makeCard(node) {
  const card = element("button", { class: "card", type: "button", "data-id": node.id });
  const words = [node.type, ...node.words.filter((word) => word !== "on Spark")].join(", ");
  const top = element("span", { class: "top" }, element("span", { class: "name" }, node.name), element("span", { class: "type" }, words));
  if (node.kind === "sink") top.append(element("span", { class: onSpark(node) ? "chip spark" : "chip" }, onSpark(node) ? "Spark" : "local"));
  top.append(element("span", { class: "chip state", hidden: "" }));
  const parts = ["figures", "steps", "why", "ways"].map((name) => element("span", { class: name }));
  const chart = svgElement("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" }, svgElement("path", { class: "line" }));
  card.append(top, ...parts, chart);
  card.addEventListener("click", () => { selected = node; detail(); sample.select(node.id); $("#detail").showModal(); });
  return card;
}

function updateCard(node) {
  const card = cards.get(node.id), now = health(node);
  card.className = `card ${now}`;
  const chip = card.querySelector(".state");
  chip.hidden = now === "ok";
  show(chip, now, (text) => [text]);
  chip.className = `chip state ${now}`;
  show(card.querySelector(".figures"), figures(node), (pairs) => pairs.map(([value, label, bad]) =>
    element("span", bad ? { class: "bad" } : {}, element("b", {}, value), ` ${label}`)));
  show(card.querySelector(".why"), reason(node), (text) => [text]);
  const ways = graph.edges.filter((edge) => edge.start === node.id).map((edge) => { // for narrow screens, which have no edges
    const events = flow(edge), labels = [edge.label, events > 0 ? `${short(events)}/s` : ""].filter(Boolean).join(", ");
    return `→ ${nodes.get(edge.end).name}${labels ? ` (${labels})` : ""}`;
  });
  show(card.querySelector(".ways"), ways.join(", "), (text) => [text]);
  const steps = node.interceptors.map((interceptor) => {
    const dropped = figure(interceptor, "EventFilteredCount");
    return [interceptor.type, `${interceptor.name}${dropped ? ` (${short(dropped)} dropped)` : ""}`];
  });
  show(card.querySelector(".steps"), steps, (pairs) => pairs.map(([type, text]) => element("span", { title: type }, text)));
}

function updateChart(node) {
  const numbers = history.values(node.metrics, MAIN[node.kind], true);
  cards.get(node.id).querySelector(".line").setAttribute("d", history.line(numbers, 100, 22));
}

// --- the graph

function build() {
  document.title = $("#name").textContent = graph.agent;
  for (const node of graph.nodes) nodes.set(node.id, node);
  for (const kind of KINDS) {
    const column = $(`#${kind}s`), nodesOfKind = graph.nodes.filter((node) => node.kind === kind);
    const frames = new Map();
    for (const group of kind === "sink" ? graph.groups : []) {
      const frame = element("div", { class: "group", role: "group", "aria-label": `sink group ${group.name}` },
        element("h3", {}, `sink group ${group.name}: ${group.kind.replace("_", " ")}`));
      for (const id of group.sinks) frames.set(id, frame);
    }
    for (const node of nodesOfKind) {
      const card = makeCard(node), frame = frames.get(node.id);
      cards.set(node.id, card);
      if (frame) { frame.append(card); column.append(frame); } else column.append(card);
    }
    if (nodesOfKind.length >= DENSE) $("#graph").classList.add("dense");
  }
  $("#filter").hidden = graph.nodes.length < 8;
  $("#filter").addEventListener("input", () => { filter(); wires(); });
  new ResizeObserver(wires).observe($("#graph"));
  $("#configuration pre").textContent = Object.entries(graph.lines).map(([key, value]) => `${key} = ${value}`).join("\n");
}

function filter() {
  const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const node of graph.nodes) {
    const place = node.kind === "sink" && !onSpark(node) ? "local" : "";
    const text = [node.name, node.type, place, ...node.words, health(node)].join(" ").toLowerCase();
    cards.get(node.id).hidden = !words.every((word) => text.includes(word));
  }
  for (const frame of document.querySelectorAll(".group")) frame.hidden = !frame.querySelector(".card:not([hidden])");
}

/** Events per second along an edge; undefined for a topic that Spark writes, whose events are not counted. */
function flow(edge) {
  if (edge.metrics) return rate(edge, "EventRoutedCount");
  if (edge.kind === "overflow") return rate(nodes.get(edge.start), "OverflowEventCount");
  return edge.kind === "topic" ? undefined : rate(nodes.get(edge.end), MAIN.sink);
}

function wires() {
  const boxOf = (id) => { const card = cards.get(id); return card.offsetParent === null ? null : card.getBoundingClientRect(); };
  draw($("#edges"), graph.edges, boxOf, flow);
}

// --- the other sections

const COMMAND = /\b(agent (?:dlq|group|cluster|check|start|sandbox|audit|topic|demo|hdfs|tap|reload|explain|test) .*|pip install .*)$/;

/** Split off the command at the end of a text, so that one click selects it. */
function withCommand(text) {
  const match = text.match(COMMAND);
  return match ? [text.slice(0, match.index), element("code", {}, match[0])] : [text];
}

function problems() {
  const rows = ["failing", "degraded"].flatMap((kind) => Object.entries(state[kind]).map(([name, reason]) => [kind, name, reason]));
  show($("#problems ul"), rows.map(([kind, name, reason]) => [kind, name, reason.replace(/, the latest \d+ s ago/, "")]), (rows) =>
    rows.map(([kind, name, reason]) => element("li", { class: kind }, element("span", { class: `chip ${kind}` }, kind), " ",
      element("span", { class: "component" }, `${name}: `), ...withCommand(reason))));
  $("#problems").hidden = !rows.length;
  const badge = $("#state");
  if (badge.textContent !== state.state) badge.textContent = state.state; // screen readers announce each assignment
  badge.className = `badge ${state.state}`;
}

function log() {
  show($("#said"), state.said, (entries) => entries.map((entry) => element("li", { class: entry.level },
    element("time", { datetime: new Date(entry.at * 1000).toISOString() }, new Date(entry.at * 1000).toLocaleTimeString()), " ",
    element("span", { class: "component" }, `${entry.component}: `), ...withCommand(entry.text))));
  $("#quiet").hidden = state.said.length > 0;
}

/** Create a table. A head that ends in `#` is of a column of numbers. */
function table(heads, rows) {
  const kind = (head) => (head.endsWith("#") ? { class: "number" } : {});
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col", ...kind(name) }, name.replace("#", ""))));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", kind(heads[i]), cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

function deadLetters() {
  const rows = graph.nodes.filter((node) => figure(node, "EventRejectedCount")).map((node) => [
    node.id, node.kind === "sink" ? graph.edges.filter((edge) => edge.end === node.id).map((edge) => nodes.get(edge.start).name).join(", ") : "",
    short(figure(node, "EventRejectedCount")), `${graph.dead_letters} --component ${node.id}`]);
  $("#letters").hidden = !rows.length;
  show($("#letters .tables"), rows, (rows) => [table(["Component", "Channel", "Events#", "Command that lists them"],
    rows.map(([name, channel, number, command]) => [name, channel || "–", number, element("code", {}, command)]))]);
}

function kafka() {
  $("#kafka").hidden = !state.kafka.length;
  show($("#kafka .clusters"), state.kafka, (clusters) => clusters.map((cluster) => {
    const block = element("div", {}, element("h3", {}, cluster.error ? `Channel ${cluster.channel}` : `Channel ${cluster.channel}: topic ${cluster.topic}`));
    if (cluster.error) block.append(element("p", { class: "failing" }, ...withCommand(cluster.error)));
    if (!cluster.brokers) return block;
    const known = cluster.partitions > 0, bad = (number) => element("span", number ? { class: "failing" } : {}, known ? `${number}` : "–");
    const brokers = table(["Broker#", "Address", "State", "Leads#"], cluster.brokers.map((broker) => [`${broker.id}`, broker.address,
      element("span", { class: broker.up ? "ok" : "failing" }, broker.up ? "up" : "down: refuses connections"), known ? `${broker.leads}` : "–"]));
    const topic = table(["Partitions#", "Under-replicated#", "Without leader#"], [[known ? `${cluster.partitions}` : "–", bad(cluster.under_replicated), bad(cluster.leaderless)]]);
    block.append(element("div", { class: "tables" }, brokers, topic));
    return block;
  }));
}

function spark() {
  const rows = graph.nodes.filter(onSpark).map((node) => [node.name, brief(figure(node, "BatchMilliseconds")), ...["RecordsPerSecond", "Lag", "StateRows", "StateBytes"].map((name) => short(figure(node, name))), short(figure(node, "DriverRestartCount") || 0)]);
  $("#spark").hidden = !rows.length;
  show($("#spark .application"), state.spark, (spark) => !spark.application ? [] : ["Application ",
    /^https?:/.test(spark.tracking) ? element("a", { href: spark.tracking, rel: "noreferrer" }, spark.application) : spark.application]);
  show($("#spark .tables"), rows, () => [table(["Sink", "Took#", "Records/s#", "Lag, records#", "State, rows#", "State, bytes#", "Restarts of the driver#"], rows)]);
}

async function files() {
  if (!graph.nodes.some((node) => node.kind === "source" && figure(node, "FollowedFileCount") !== undefined)) return;
  filesRequested = Date.now();
  const match = $("#file-filter").value, answer = await fetchJson(`api/files?match=${encodeURIComponent(match)}`);
  if (match !== $("#file-filter").value) return; // a later request is under way
  $("#files").hidden = !answer.all && !match;
  $("#files-about").textContent = answer.all > answer.files.length
    ? `${answer.files.length} of ${answer.all.toLocaleString("en")} files, most unread bytes first` : `${answer.all} files`;
  show($("#files .tables"), answer.files, (files) => [table(["Source", "File", "Read#", "Left#", "Progress"], files.map((file) => [
    file.source, file.path, short(file.position), short(Math.max(0, file.size - file.position)),
    element("progress", { max: Math.max(1, file.size), value: file.size ? file.position : 1, "aria-label": "read" })]))]);
}

function detail() {
  const node = selected, parts = [element("p", { class: "type" }, `${node.id}, ${node.place}`)];
  $("#detail-title").textContent = `${node.name} (${[node.type, ...node.words].join(", ")})`;
  if (reason(node)) parts.push(element("p", { class: health(node) }, ...withCommand(reason(node))));
  for (const counter of Object.keys(history.series[node.metrics] || {})) {
    const [name, asRate] = CHARTS[counter], label = counter === "Lag" ? `${name} in ${node.lag_unit || "events"}` : name;
    const numbers = history.values(node.metrics, counter, asRate), known = numbers.filter((value) => value !== null);
    if (!known.length) continue;
    const { maximum } = history.points(numbers);
    parts.push(element("div", { class: "chart-head" }, element("b", {}, `${label}: ${short(known[known.length - 1])}`), element("span", {}, `last hour, up to ${short(maximum > 1e-8 ? maximum : 0)}`)));
    parts.push(svgElement("svg", { class: "chart", viewBox: "0 0 1000 110", preserveAspectRatio: "none", role: "img", "aria-label": label }, svgElement("path", { class: "line", d: history.line(numbers, 1000, 110) })));
  }
  for (const component of [node, ...node.interceptors]) {
    parts.push(element("h3", {}, component === node ? "Figures" : `Interceptor ${component.name} (${component.type})`));
    parts.push(table(["Figure", "Value#"], Object.entries(state.figures[component.metrics] || {})));
    const set = Object.entries(component.options).map(([name, value]) => [name, value, "set"]);
    const defaults = Object.entries(component.defaults).map(([name, value]) => [name, value, "default"]);
    if (component === node) parts.push(element("h3", {}, "Options"));
    parts.push(table(["Option", "Value", ""], [...set, ...defaults]));
  }
  $("#detail-body").replaceChildren(...parts);
}

// --- the loop

async function fetchJson(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function loadGraph(answer) {
  const latest = await fetchJson("api/graph");
  if (graph && JSON.stringify(latest) !== JSON.stringify(graph)) { location.reload(); return; } // the configuration has changed
  state = answer;
  if (!graph) { graph = latest; build(); }
}

async function update() {
  try {
    const answer = await fetchJson("api/state");
    if (!graph || answer.started !== state.started || answer.configured !== state.configured) await loadGraph(answer);
    state = answer;
    $("#about").textContent = `up ${span(state.time - state.started)} on ${state.host}, version ${state.version}, ${graph.file}`;
    if (Date.now() - history.requested > HISTORY_INTERVAL_MS) {
      history.add(await fetchJson(`api/history?since=${history.times[history.times.length - 1] || 0}`));
      history.requested = Date.now();
      if (!$("#graph").classList.contains("dense")) graph.nodes.forEach(updateChart);
    }
    graph.nodes.forEach(updateCard);
    problems(); deadLetters(); log(); kafka(); spark(); filter(); wires();
    if ($("#detail").open && !String(getSelection())) detail();
    if ($("#detail").open) await sample.update(fetchJson);
    if (Date.now() - filesRequested > FILES_INTERVAL_MS) await files();
    $("#stale").hidden = true;
    document.body.dataset.updates = ++updates;
  } catch (error) {
    $("#stale").textContent = `The agent does not answer (${error.message}). The page shows its last known state.`;
    $("#stale").hidden = false;
  }
  setTimeout(update, STATE_INTERVAL_MS);
}

$("#detail").addEventListener("close", () => sample.end());
$("#file-filter").addEventListener("input", () => { files().catch(() => {}); });
update();
