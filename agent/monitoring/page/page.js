// The page of one agent: asks `api/state` every two seconds and shows what it says.
"use strict";

import { brief, drawn, element, history, short, span } from "./charts.js";
import { sample } from "./sample.js";
import { draw } from "./wires.js";

const EVERY = 2000, HISTORY_EVERY = 10000, FILES_EVERY = 4000;
const DENSE = 30; // from so many components of a kind on, cards are one line each
const KINDS = ["source", "channel", "sink"];
const MAIN = { source: "EventAcceptedCount", channel: "EventPutSuccessCount", sink: "EventDrainSuccessCount" };
const CHARTS = {
  EventAcceptedCount: ["events/s accepted", true], EventReceivedCount: ["events/s", true],
  EventPutSuccessCount: ["events/s stored", true], EventDrainSuccessCount: ["events/s delivered", true],
  ChannelSize: ["events in the channel", false], Lag: ["lag", false], LagSeconds: ["lag in seconds", false],
  BatchMilliseconds: ["milliseconds a batch", false],
};

const $ = (selector) => document.querySelector(selector);
const cards = new Map(), nodes = new Map(), says = new WeakMap();
let graph = null, state = null, shown = null, filesAsked = 0, turns = 0;

const figure = (node, name) => { const v = state.figures[node.metrics]?.[name]; return v === undefined ? undefined : Number(v); };
const rate = (node, name) => state.rates[node.metrics]?.[name];
const why = (node) => state.failing[node.metrics] || state.degraded[node.metrics] || state.standby?.[node.metrics] || "";
const health = (node) => ["failing", "degraded", "standby"].find((kind) => node.metrics in (state[kind] ?? {})) || "ok";
const onSpark = (node) => node.words.includes("on Spark");

/** Fill an element by what `make` returns, unless that is what it shows already: focus and selections stay. */
function show(where, content, make) {
  const text = JSON.stringify(content);
  if (says.get(where) === text) return;
  says.set(where, text);
  where.replaceChildren(...make(content));
}

// --- cards

function figures(node) {
  const found = [];
  const add = (label, value, bad = false) => { if (value !== undefined) found.push([value, label, bad]); };
  const many = (label, name, form = short, bad = false) => { const v = figure(node, name); if (v) add(label.replace("(s)", v === 1 ? "" : "s"), form(v), bad); };
  if (node.kind === "source") {
    add("events/s", short(rate(node, MAIN.source)));
    many("events", MAIN.source);
    const most = figure(node, "OpenConnectionLimit");
    many(most ? "connections" : "connection(s)", "OpenConnectionCount", (v) => (most ? `${short(v)} of ${short(most)}` : short(v)));
    many("file(s)", "FollowedFileCount");
    many("datagram(s) dropped", "KernelDropCount", short, true);
    if (figure(node, "UnacknowledgedSeconds") > 5) many("not stored yet", "UnacknowledgedSeconds", span, true);
  } else if (node.kind === "channel") {
    add("in/s", short(rate(node, MAIN.channel)));
    const out = rate(node, "EventTakeSuccessCount");
    if (out) add("out/s", short(out));
    const size = figure(node, "ChannelSize");
    if (size || figure(node, "ChannelCapacity")) add("events held", short(size));
    many("full", "ChannelFillPercentage", (v) => `${v.toFixed(0)} %`);
    if (figure(node, "Overflowing")) add("in the overflow", short(figure(node, "OverflowSize")), true);
    many("broker(s) down", "BrokersDown", short, true);
    many("partition(s) under-replicated", "UnderReplicatedPartitions", short, true);
  } else {
    add("events/s", short(rate(node, MAIN.sink)));
    many("events", MAIN.sink);
    const lag = figure(node, "Lag");
    add("lag", lag === undefined ? "unknown" : `${short(lag)} ${node.lag_unit || "events"}`);
    many("behind", "LagSeconds", span);
    const left = figure(node, "RetentionSecondsLeft");
    if (left < 86400) add("until Kafka deletes the oldest", span(left), true);
  }
  many("a batch", "BatchMilliseconds", brief);
  many(node.kind === "sink" ? "dead letter(s)" : "rejected", "EventRejectedCount", short, true);
  const next = figure(node, "RetryTime");
  if (next) add(`until attempt ${figure(node, "RetryAttempt") + 1}`, span(Math.max(0, next / 1000 - state.time)));
  return found;
}

function makeCard(node) {
  const made = element("button", { class: "card", type: "button", "data-id": node.id });
  const words = [node.type, ...node.words.filter((word) => word !== "on Spark")].join(", ");
  const top = element("span", { class: "top" }, element("span", { class: "name" }, node.name), element("span", { class: "type" }, words));
  if (node.kind === "sink") top.append(element("span", { class: onSpark(node) ? "chip spark" : "chip" }, onSpark(node) ? "Spark" : "local"));
  top.append(element("span", { class: "chip state", hidden: "" }));
  const parts = ["figures", "steps", "why", "ways"].map((name) => element("span", { class: name }));
  const chart = drawn("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" }, drawn("path", { class: "line" }));
  made.append(top, ...parts, chart);
  made.addEventListener("click", () => { shown = node; detail(); sample.of(node.id); $("#detail").showModal(); });
  return made;
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
  show(card.querySelector(".why"), why(node), (text) => [text]);
  const ways = graph.edges.filter((edge) => edge.start === node.id).map((edge) => { // where no lines are drawn
    const events = flow(edge), said = [edge.label, events > 0 ? `${short(events)}/s` : ""].filter(Boolean).join(", ");
    return `→ ${nodes.get(edge.end).name}${said ? ` (${said})` : ""}`;
  });
  show(card.querySelector(".ways"), ways.join(", "), (text) => [text]);
  const steps = node.interceptors.map((one) => {
    const dropped = figure(one, "EventFilteredCount");
    return [one.type, `${one.name}${dropped ? ` (${short(dropped)} dropped)` : ""}`];
  });
  show(card.querySelector(".steps"), steps, (found) => found.map(([type, text]) => element("span", { title: type }, text)));
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
    const column = $(`#${kind}s`), mine = graph.nodes.filter((node) => node.kind === kind);
    const frames = new Map();
    for (const group of kind === "sink" ? graph.groups : []) {
      const frame = element("div", { class: "group", role: "group", "aria-label": `sink group ${group.name}` },
        element("h3", {}, `sink group ${group.name}: ${group.kind.replace("_", " ")}`));
      for (const id of group.sinks) frames.set(id, frame);
    }
    for (const node of mine) {
      const card = makeCard(node), frame = frames.get(node.id);
      cards.set(node.id, card);
      if (frame) { frame.append(card); column.append(frame); } else column.append(card);
    }
    if (mine.length >= DENSE) $("#graph").classList.add("dense");
  }
  $("#filter").hidden = graph.nodes.length < 8;
  $("#filter").addEventListener("input", () => { filter(); wires(); });
  new ResizeObserver(wires).observe($("#graph"));
  $("#configuration pre").textContent = Object.entries(graph.lines).map(([key, value]) => `${key} = ${value}`).join("\n");
}

function filter() {
  const wanted = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const node of graph.nodes) {
    const place = node.kind === "sink" && !onSpark(node) ? "local" : "";
    const text = [node.name, node.type, place, ...node.words, health(node)].join(" ").toLowerCase();
    cards.get(node.id).hidden = !wanted.every((word) => text.includes(word));
  }
  for (const frame of document.querySelectorAll(".group")) frame.hidden = !frame.querySelector(".card:not([hidden])");
}

/** Events a second along an edge; undefined for a topic that Spark writes, as nobody here counts these. */
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

function sentence(text) { // one click selects what stands in it as a command
  const found = text.match(COMMAND);
  return found ? [text.slice(0, found.index), element("code", {}, found[0])] : [text];
}

function problems() {
  const found = ["failing", "degraded"].flatMap((kind) => Object.entries(state[kind]).map(([name, reason]) => [kind, name, reason]));
  show($("#problems ul"), found.map(([kind, name, reason]) => [kind, name, reason.replace(/, the latest \d+ s ago/, "")]), (rows) =>
    rows.map(([kind, name, reason]) => element("li", { class: kind }, element("span", { class: `chip ${kind}` }, kind), " ",
      element("span", { class: "component" }, `${name}: `), ...sentence(reason))));
  $("#problems").hidden = !found.length;
  const badge = $("#state");
  if (badge.textContent !== state.state) badge.textContent = state.state; // said by screen readers
  badge.className = `badge ${state.state}`;
}

function said() {
  show($("#said"), state.said, (all) => all.map((one) => element("li", { class: one.level },
    element("time", { datetime: new Date(one.at * 1000).toISOString() }, new Date(one.at * 1000).toLocaleTimeString()), " ",
    element("span", { class: "component" }, `${one.component}: `), ...sentence(one.text))));
  $("#quiet").hidden = state.said.length > 0;
}

/** Heads that end in `#` are those of numbers. */
function table(heads, rows) {
  const kind = (head) => (head.endsWith("#") ? { class: "number" } : {});
  const head = element("tr", {}, ...heads.map((name) => element("th", { scope: "col", ...kind(name) }, name.replace("#", ""))));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", kind(heads[i]), cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

function letters() {
  const found = graph.nodes.filter((node) => figure(node, "EventRejectedCount")).map((node) => [
    node.id, node.kind === "sink" ? graph.edges.filter((edge) => edge.end === node.id).map((edge) => nodes.get(edge.start).name).join(", ") : "",
    short(figure(node, "EventRejectedCount")), `${graph.dead_letters} --component ${node.id}`]);
  $("#letters").hidden = !found.length;
  show($("#letters .tables"), found, (rows) => [table(["Component", "Channel", "Events#", "What they are, and why"],
    rows.map(([name, channel, number, command]) => [name, channel || "–", number, element("code", {}, command)]))]);
}

function kafka() {
  $("#kafka").hidden = !state.kafka.length;
  show($("#kafka .clusters"), state.kafka, (clusters) => clusters.map((one) => {
    const made = element("div", {}, element("h3", {}, one.error ? `Channel ${one.channel}` : `Channel ${one.channel}: topic ${one.topic}`));
    if (one.error) made.append(element("p", { class: "failing" }, ...sentence(one.error)));
    if (!one.brokers) return made;
    const known = one.partitions > 0, bad = (number) => element("span", number ? { class: "failing" } : {}, known ? `${number}` : "–");
    const brokers = table(["Broker#", "Address", "State", "Leads#"], one.brokers.map((broker) => [`${broker.id}`, broker.address,
      element("span", { class: broker.up ? "ok" : "failing" }, broker.up ? "up" : "down: it takes no connection"), known ? `${broker.leads}` : "–"]));
    const topic = table(["Partitions#", "Under-replicated#", "Without leader#"], [[known ? `${one.partitions}` : "–", bad(one.under_replicated), bad(one.leaderless)]]);
    made.append(element("div", { class: "tables" }, brokers, topic));
    return made;
  }));
}

function spark() {
  const rows = graph.nodes.filter(onSpark).map((node) => [node.name, brief(figure(node, "BatchMilliseconds")), ...["RecordsPerSecond", "Lag", "StateRows", "StateBytes"].map((name) => short(figure(node, name))), short(figure(node, "DriverRestartCount") || 0)]);
  $("#spark").hidden = !rows.length;
  show($("#spark .application"), state.spark, (one) => !one.application ? [] : ["Application ",
    /^https?:/.test(one.tracking) ? element("a", { href: one.tracking, rel: "noreferrer" }, one.application) : one.application]);
  show($("#spark .tables"), rows, () => [table(["Sink", "Took#", "Records/s#", "Lag, records#", "State, rows#", "State, bytes#", "Restarts of the driver#"], rows)]);
}

async function files() {
  if (!graph.nodes.some((node) => node.kind === "source" && figure(node, "FollowedFileCount") !== undefined)) return;
  filesAsked = Date.now();
  const wanted = $("#file-filter").value, found = await ask(`api/files?match=${encodeURIComponent(wanted)}`);
  if (wanted !== $("#file-filter").value) return; // a later one is under way
  $("#files").hidden = !found.all && !wanted;
  $("#files-about").textContent = found.all > found.files.length
    ? `${found.files.length} of ${found.all.toLocaleString("en")} files, those with most left to read first` : `${found.all} files`;
  show($("#files .tables"), found.files, (all) => [table(["Source", "File", "Read#", "Left#", "Progress"], all.map((file) => [
    file.source, file.path, short(file.position), short(Math.max(0, file.size - file.position)),
    element("progress", { max: Math.max(1, file.size), value: file.size ? file.position : 1, "aria-label": "read" })]))]);
}

function detail() {
  const node = shown, parts = [element("p", { class: "type" }, `${node.id}, ${node.place}`)];
  $("#detail-title").textContent = `${node.name} (${[node.type, ...node.words].join(", ")})`;
  if (why(node)) parts.push(element("p", { class: health(node) }, ...sentence(why(node))));
  for (const counter of Object.keys(history.series[node.metrics] || {})) {
    const [name, asRate] = CHARTS[counter], label = counter === "Lag" ? `${name} in ${node.lag_unit || "events"}` : name;
    const numbers = history.values(node.metrics, counter, asRate), known = numbers.filter((value) => value !== null);
    if (!known.length) continue;
    const most = history.points(numbers).most;
    parts.push(element("div", { class: "chart-head" }, element("b", {}, `${label}: ${short(known[known.length - 1])}`), element("span", {}, `last hour, up to ${short(most > 1e-8 ? most : 0)}`)));
    parts.push(drawn("svg", { class: "chart", viewBox: "0 0 1000 110", preserveAspectRatio: "none", role: "img", "aria-label": label }, drawn("path", { class: "line", d: history.line(numbers, 1000, 110) })));
  }
  for (const one of [node, ...node.interceptors]) {
    parts.push(element("h3", {}, one === node ? "Figures" : `Interceptor ${one.name} (${one.type})`));
    parts.push(table(["Figure", "Value#"], Object.entries(state.figures[one.metrics] || {})));
    const set = Object.entries(one.options).map(([name, value]) => [name, value, "set"]);
    const rest = Object.entries(one.defaults).map(([name, value]) => [name, value, "default"]);
    if (one === node) parts.push(element("h3", {}, "Options"));
    parts.push(table(["Option", "Value", ""], [...set, ...rest]));
  }
  $("#detail-body").replaceChildren(...parts);
}

// --- the loop

async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function meet(came) {
  const found = await ask("api/graph");
  if (graph && JSON.stringify(found) !== JSON.stringify(graph)) { location.reload(); return; } // of another configuration
  state = came;
  if (!graph) { graph = found; build(); }
}

async function turn() {
  try {
    const came = await ask("api/state");
    if (!graph || came.started !== state.started || came.configured !== state.configured) await meet(came);
    state = came;
    $("#about").textContent = `up ${span(state.time - state.started)} on ${state.host}, version ${state.version}, ${graph.file}`;
    if (Date.now() - history.asked > HISTORY_EVERY) {
      history.add(await ask(`api/history?since=${history.times[history.times.length - 1] || 0}`));
      history.asked = Date.now();
      if (!$("#graph").classList.contains("dense")) graph.nodes.forEach(updateChart);
    }
    graph.nodes.forEach(updateCard);
    problems(); letters(); said(); kafka(); spark(); filter(); wires();
    if ($("#detail").open && !String(getSelection())) detail();
    if ($("#detail").open) await sample.turn(ask);
    if (Date.now() - filesAsked > FILES_EVERY) await files();
    $("#stale").hidden = true;
    document.body.dataset.turns = ++turns;
  } catch (error) {
    $("#stale").textContent = `The agent does not answer (${error.message}). What is shown is how it was.`;
    $("#stale").hidden = false;
  }
  setTimeout(turn, EVERY);
}

$("#detail").addEventListener("close", () => sample.end());
$("#file-filter").addEventListener("input", () => { files().catch(() => {}); });
turn();
