// The page of one agent: requests `api/state` every two seconds and shows it.
"use strict";

import { history } from "./charts.js";
import { Charts, changeSpan, openDetail, PROCESS_CHARTS, redrawDetail, updateDetail } from "./detail.js";
import { showAbsence, showPast, showProblems, showState, withoutCommand } from "./problems.js";
import { brief, clock, element, setLocal, short, show, span, svgElement, table, timeElement, withUnit } from "./texts.js";
import { draw } from "./wires.js";

const STATE_INTERVAL_MS = 2000, HISTORY_INTERVAL_MS = 10000, FILES_INTERVAL_MS = 4000, ANSWER_TIMEOUT_MS = 15000;
const DENSE = 30; // number of components of a kind from which on each card is one line
const LONG = 6; // number from which on columns begin at one height: the shorter ones would be out of sight
const KINDS = ["source", "channel", "sink"];
const MAIN = { source: "EventAcceptedCount", channel: "EventPutSuccessCount", sink: "EventDrainSuccessCount" };
const WORDS = { // of a problem on the card of its component, if it is not simply failing or degraded
  "sink-behind": "behind", "channel-full": "nearly full", "events-not-stored": "waits", "datagrams-lost": "loses datagrams",
  "retention-near": "deletion near", "brokers-down": "broker down", "partitions-offline": "no leader", "disk-full": "disk nearly full",
  "certificate-expires": "certificate expires", overflowing: "overflows", "events-rejected": "rejects events",
};

const GIVES_NOTHING = ["brokers-away", "channel-fails", "overflowing"]; // kinds of problems of a channel

const $ = (selector) => document.querySelector(selector);
const cards = new Map(), nodes = new Map();
let graph = null, state = null, filesRequested = 0, historyRequested = 0, updates = 0, answered = null;

const figure = (node, name) => { const v = state.figures[node.metrics]?.[name]; return v === undefined ? undefined : Number(v); };
const rate = (node, name) => state.rates[node.metrics]?.[name];
const problemsOf = (node) => state.problems.filter((problem) => problem.metrics === node.metrics);
const health = (node) => problemsOf(node)[0]?.severity ?? (node.metrics in (state.standby ?? {}) ? "standby" : condition(node) || "ok");
const onSpark = (node) => node.words.includes("on Spark");

/**
 * `slow` for a sink whose lag grows beyond ten seconds of its rate, or is not delivered at all; `starved` for one that
 * delivers nothing, as its channel has a problem; else an empty text.
 */
function condition(node) {
  if (node.kind !== "sink") return "";
  const growth = state.growth[node.metrics], lag = figure(node, "Lag");
  if (growth > 0 && lag > 10 * Math.max(1, rate(node, MAIN.sink) ?? 0)) return "slow";
  const channels = graph.edges.filter((edge) => edge.end === node.id).map((edge) => nodes.get(edge.start));
  return rate(node, MAIN.sink) === 0 && channels.some((channel) => GIVES_NOTHING.includes(problemsOf(channel)[0]?.kind)) ? "starved" : "";
}

function word(node) {
  const problem = problemsOf(node)[0];
  if (problem) return problem.severity === "failing" ? "failing" : WORDS[problem.kind] ?? problem.severity;
  return { slow: "falling behind", starved: "gets no events" }[health(node)] ?? health(node);
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
    if (figure(node, "UnacknowledgedSeconds") > 5) add("not stored yet", span(figure(node, "UnacknowledgedSeconds")), true);
  } else if (node.kind === "channel") {
    add("events/s in", short(rate(node, MAIN.channel)));
    const out = rate(node, "EventTakeSuccessCount");
    if (out) add("events/s out", short(out));
    const size = figure(node, "ChannelSize");
    if (size || figure(node, "ChannelCapacity")) add("events held", short(size));
    addNonzero("full", "ChannelFillPercentage", (v) => `${v.toFixed(0)} %`, figure(node, "ChannelFillPercentage") > 80);
    if (figure(node, "Overflowing")) add("events in the overflow", short(figure(node, "OverflowSize")), true);
    addNonzero("broker(s) down", "BrokersDown", short, true);
    addNonzero("partition(s) under-replicated", "UnderReplicatedPartitions", short, true);
  } else {
    add("events/s", short(rate(node, MAIN.sink)));
    addNonzero("events", MAIN.sink);
    const lag = figure(node, "Lag"), growth = state.growth[node.metrics];
    add("lag", lag === undefined ? "unknown" : withUnit(lag, node.lag_unit || "events"));
    if (growth > 0.05) add("more lag", `${short(growth)} ${node.lag_unit || "events"}/s`, condition(node) === "slow");
    addNonzero("behind", "LagSeconds", span);
    const left = figure(node, "RetentionSecondsLeft");
    if (left < 86400) add("until Kafka deletes the oldest", span(left), true);
  }
  addNonzero("a batch", "BatchMilliseconds", brief);
  addNonzero("latency p99", "LatencyP99Milliseconds", brief);
  addNonzero(node.kind === "sink" ? "dead letter(s)" : "rejected events", "EventRejectedCount", short, true);
  const next = figure(node, "RetryTime");
  if (next) add(`until attempt ${figure(node, "RetryAttempt") + 1}`, span(Math.max(0, next / 1000 - state.time)));
  return rows;
}

function makeCard(node) {
  const card = element("button", { class: "card", type: "button", "data-id": node.id });
  const words = [node.type, ...node.words.filter((word) => word !== "on Spark")].join(", ");
  const top = element("span", { class: "top" }, element("span", { class: "unseen" }, `${node.kind} `), element("span", { class: "name" }, node.name), element("span", { class: "type" }, words));
  if (node.kind === "sink") top.append(element("span", { class: onSpark(node) ? "chip spark" : "chip" }, onSpark(node) ? "Spark" : "local"));
  top.append(element("span", { class: "chip state", hidden: "" }));
  const parts = ["figures", "steps", "why", "ways"].map((name) => element("span", { class: name }));
  const chart = svgElement("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" }, svgElement("path", { class: "line" }));
  card.append(top, ...parts, chart);
  card.addEventListener("click", () => { openDetail(node); refreshDetail().catch(() => {}); });
  return card;
}

/** Text on the card: the first error, or the reason of a standby. */
function reason(node) {
  const problem = problemsOf(node)[0];
  return problem ? withoutCommand(problem.error, problem.command) || problem.effect : state.standby?.[node.metrics] || "";
}

function updateCard(node) {
  const card = cards.get(node.id), now = health(node);
  card.className = `card ${now}`;
  const chip = card.querySelector(".state");
  chip.hidden = now === "ok";
  show(chip, word(node));
  chip.className = `chip state ${now}`;
  show(card.querySelector(".figures"), figures(node), (pairs) => pairs.map(([value, label, bad]) =>
    element("span", bad ? { class: "bad" } : {}, element("b", {}, value), ` ${label}`)));
  show(card.querySelector(".why"), reason(node));
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
  cards.get(node.id).querySelector(".line").setAttribute("d", history.line(node.metrics, MAIN[node.kind], 100, 22));
}

// --- the graph

function build() {
  $("#name").textContent = graph.agent;
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
    if (nodesOfKind.length >= LONG) $("#graph").classList.add("long");
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
    const text = [node.name, node.type, place, ...node.words, health(node), word(node)].join(" ").toLowerCase();
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

/** `stuck` for an edge to a failing component, or from a source that cannot store; `slow` for one to a slow sink. */
function edgeCondition(edge) {
  const start = nodes.get(edge.start), end = nodes.get(edge.end);
  if (edge.kind === "topic" || edge.kind === "overflow") return "";
  if (health(end) === "failing" || (start.kind === "source" && problemsOf(start).some((problem) => problem.kind === "source-fails"))) return "stuck";
  const isSlow = health(end) === "slow" || problemsOf(end).some((problem) => ["sink-behind", "channel-full", "overflowing", "retention-near"].includes(problem.kind));
  return isSlow || problemsOf(start).some((problem) => problem.kind === "events-not-stored") ? "slow" : "";
}

function wires() {
  const boxOf = (id) => { const card = cards.get(id); return card.offsetParent === null ? null : card.getBoundingClientRect(); };
  draw($("#edges"), graph.edges, boxOf, flow, edgeCondition);
}

// --- the other sections

const COMMAND = /\b(agent (?:dlq|group|cluster|check|start|sandbox|audit|topic|demo|hdfs|tap|reload|explain|test) .*|pip install .*)$/;

/** Split off the command at the end of a text, so that one click selects it. */
function withCommand(text) {
  const match = text.match(COMMAND);
  return match ? [text.slice(0, match.index), element("code", {}, match[0])] : [text];
}

function log() {
  show($("#said"), [state.said, clock.isLocal], ([entries]) => entries.map((entry) => element("li", { class: entry.level },
    timeElement(entry.at), ` ${entry.level} `,
    element("span", { class: "component" }, `${entry.component}: `), ...withCommand(entry.text))));
  $("#quiet").hidden = state.said.length > 0;
}

function processFigures() {
  const own = state.process ?? {}, limit = own.OpenFileLimit ? ` of ${short(own.OpenFileLimit)}` : "", rates = state.rates.PROCESS ?? {};
  const rows = [["CpuPercent", (v) => [short(v), "% of a core"]], ["MemoryBytes", (v) => [withUnit(v, "B"), "of memory"]],
    ["OpenFileCount", (v) => [`${short(v)}${limit}`, "file descriptors"]]].filter(([name]) => own[name] !== undefined).map(([name, form]) => form(own[name]));
  if (rates.ReceivedBytesCount !== undefined) rows.push([withUnit(rates.ReceivedBytesCount, "B/s"), "received"], [withUnit(rates.TakenBytesCount, "B/s"), "given to sinks"]);
  show($("#process-figures"), rows, (all) => all.map(([value, label]) => element("span", {}, element("b", {}, value), ` ${label}`)));
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
  const rows = graph.nodes.filter(onSpark).map((node) => [node.name, brief(figure(node, "BatchMilliseconds")), short(figure(node, "RecordsPerSecond")), withUnit(figure(node, "Lag"), node.lag_unit || "events"), ...["StateRows", "StateBytes"].map((name) => short(figure(node, name))), short(figure(node, "DriverRestartCount") || 0)]);
  $("#spark").hidden = !rows.length;
  show($("#spark .application"), state.spark, (spark) => !spark.application ? [] : ["Application ",
    /^https?:/.test(spark.tracking) ? element("a", { href: spark.tracking, rel: "noreferrer" }, spark.application) : spark.application]);
  show($("#spark .tables"), rows, () => [table(["Sink", "Took#", "Records/s#", "Lag#", "State, rows#", "State, bytes#", "Restarts of the driver#"], rows)]);
}

async function files() {
  if (!graph.nodes.some((node) => node.kind === "source" && figure(node, "FollowedFileCount") !== undefined)) return;
  filesRequested = Date.now();
  const match = $("#file-filter").value, answer = await fetchJson(`api/files?match=${encodeURIComponent(match)}`);
  if (match !== $("#file-filter").value) return; // a later request is under way
  $("#files").hidden = !answer.all && !match;
  $("#files-about").textContent = answer.all > answer.files.length
    ? `${answer.files.length} of ${answer.all.toLocaleString("en")} files, most unread bytes first` : `${answer.all} files`;
  show($("#files .tables"), answer.files, (files) => [table(["Source", "File", "Read, bytes#", "Unread, bytes#", "Progress"], files.map((file) => [
    file.source, file.path, short(file.position), short(Math.max(0, file.size - file.position)),
    element("progress", { max: Math.max(1, file.size), value: file.size ? file.position : 1, "aria-label": "read" })]))]);
}

// --- the loop

const processCharts = new Charts($("#process-charts"), PROCESS_CHARTS);
const chosenSpan = () => Number($("#span").value);

async function fetchJson(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" }, signal: AbortSignal.timeout(ANSWER_TIMEOUT_MS) })
    .catch((error) => { throw new Error(error.name === "TimeoutError" ? `no answer in ${span(ANSWER_TIMEOUT_MS / 1000)}` : navigator.onLine ? "no connection" : "this device is offline"); }); // each browser has other words
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function loadGraph(answer) {
  const latest = await fetchJson("api/graph");
  if (graph && JSON.stringify(latest) !== JSON.stringify(graph)) { location.reload(); return; } // the configuration has changed
  state = answer;
  if (!graph) { graph = latest; build(); }
}

/** Show the latest known state with the present form of times. */
function render() {
  const more = ` (process ${state.pid}), version ${state.version}, ${graph.file}`;
  $("#about").replaceChildren(`up ${span(state.time - state.started)} on ${state.host}`, element("span", { class: "more" }, more), "; ", timeElement(state.time));
  showState(graph.agent, state.state, state.problems);
  showProblems(state.problems, state.time);
  showPast(state.past, clock.isLocal);
  show($("#so-far"), state.loss_so_far);
  graph.nodes.forEach(updateCard);
  deadLetters(); log(); kafka(); spark(); processFigures(); filter(); wires();
}

const refreshDetail = () => updateDetail(fetchJson, state, Number($("#detail-span").value));

async function update() {
  try {
    const answer = await fetchJson("api/state");
    if (!graph || answer.started !== state.started || answer.configured !== state.configured) await loadGraph(answer);
    state = answer;
    if (Date.now() - historyRequested > HISTORY_INTERVAL_MS) {
      history.add(await fetchJson(`api/history?span=3600&since=${history.times[history.times.length - 1] || 0}`));
      historyRequested = Date.now();
      if (!$("#graph").classList.contains("dense")) graph.nodes.forEach(updateChart);
    }
    if ($("#process").open) await processCharts.update(fetchJson, "PROCESS", chosenSpan());
    await refreshDetail();
    if (Date.now() - filesRequested > FILES_INTERVAL_MS) await files();
    answered = Date.now() / 1000;
    document.body.classList.remove("gone");
    $("#stale").hidden = true;
    render();
    document.body.dataset.updates = ++updates;
  } catch (error) {
    showGone(error);
  }
  setTimeout(update, STATE_INTERVAL_MS);
}

/** Show that the agent does not answer. What the page has shown stays, in grey. */
function showGone(error) {
  showAbsence($("#stale"), error.message, answered, state, graph, clock.isLocal);
  document.body.classList.add("gone");
  $("#well").hidden = true;
  showState(graph?.agent ?? "agent", "gone", []);
}

function showClock() {
  $("#clock").textContent = clock.isLocal ? "Times: local" : "Times: UTC";
  $("#clock").setAttribute("aria-pressed", String(clock.isLocal));
}

$("#clock").addEventListener("click", () => {
  setLocal(!clock.isLocal);
  showClock();
  if (state !== null && graph !== null && !document.body.classList.contains("gone")) render();
  for (const chart of processCharts.charts.values()) chart.draw();
  redrawDetail();
});
$("#span").addEventListener("change", () => { processCharts.clear(); processCharts.update(fetchJson, "PROCESS", chosenSpan()).catch(() => {}); });
$("#detail-span").addEventListener("change", () => { changeSpan(); refreshDetail().catch(() => {}); });
$("#process").addEventListener("toggle", () => { if ($("#process").open) processCharts.update(fetchJson, "PROCESS", chosenSpan()).catch(() => {}); });
$("#file-filter").addEventListener("input", () => { files().catch(() => {}); });
showClock();
update();
