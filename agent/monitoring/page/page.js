"use strict";
// The page of one agent: asks `api/state` every two seconds and shows what it says. Text is only ever set as text,
// since names, paths and error messages come from outside.

const EVERY = 2000;
const DENSE = 30; // from so many components of a kind on, cards are one line each
const MAIN = { source: "EventAcceptedCount", channel: "EventPutSuccessCount", sink: "EventDrainSuccessCount" };
const CHARTS = {
  EventAcceptedCount: ["events/s accepted", true], EventReceivedCount: ["events/s", true],
  EventPutSuccessCount: ["events/s stored", true], EventDrainSuccessCount: ["events/s delivered", true],
  ChannelSize: ["events in the channel", false], Lag: ["lag, events", false], LagSeconds: ["lag, seconds", false],
};

const $ = (selector) => document.querySelector(selector);
let graph = null;
let state = null;
let history = { times: [], series: {} };
let shown = null; // the node whose details are open
const cards = new Map();

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function drawn(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function short(number) {
  if (number === undefined || Number.isNaN(number)) return "–";
  const size = Math.abs(number);
  if (size >= 1e9) return (number / 1e9).toFixed(1) + " G";
  if (size >= 1e6) return (number / 1e6).toFixed(1) + " M";
  if (size >= 1e4) return (number / 1e3).toFixed(1) + " k";
  return size >= 100 || Number.isInteger(number) ? Math.round(number).toLocaleString("en") : number.toFixed(1);
}

function span(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

const figure = (node, name) => { const v = state.figures[node.metrics]?.[name]; return v === undefined ? undefined : Number(v); };
const rate = (node, name) => state.rates[node.metrics]?.[name];
const why = (node) => state.failing[node.metrics] || state.degraded[node.metrics] || "";
const health = (node) => (node.metrics in state.failing ? "failing" : node.metrics in state.degraded ? "degraded" : "ok");

// --- what a card says

function figures(node) {
  const found = [];
  const add = (label, value) => { if (value !== undefined) found.push([label, value]); };
  const many = (label, name, form = short) => { const v = figure(node, name); if (v) add(label, form(v)); };
  if (node.kind === "source") {
    add("events/s", short(rate(node, MAIN.source)));
    many("events", "EventAcceptedCount");
    many("connections", "OpenConnectionCount");
    many("files", "FollowedFileCount");
    many("datagrams dropped", "DroppedDatagramCount");
    many("rejected", "EventRejectedCount");
  } else if (node.kind === "channel") {
    add("in/s", short(rate(node, MAIN.channel)));
    const out = rate(node, "EventTakeSuccessCount");
    if (out) add("out/s", short(out));
    if (node.type !== "kafka") add("events", short(figure(node, "ChannelSize")));
    many("full", "ChannelFillPercentage", (v) => `${v.toFixed(0)} %`);
    if (figure(node, "Overflowing")) add("overflow", short(figure(node, "OverflowSize")));
  } else {
    add("events/s", short(rate(node, MAIN.sink)));
    many("events", "EventDrainSuccessCount");
    const lag = figure(node, "Lag");
    if (lag !== undefined) add("lag", short(lag));
    many("behind", "LagSeconds", span);
    many("batch", "BatchMilliseconds", (v) => `${short(v)} ms`);
    many("dead letters", "EventRejectedCount");
  }
  const next = figure(node, "RetryTime");
  if (next) add(`until attempt ${figure(node, "RetryAttempt") + 1}`, span(Math.max(0, next / 1000 - state.time)));
  return found;
}

function makeCard(node) {
  const made = element("button", { class: "card", type: "button", "data-id": node.id });
  const words = [node.type, ...node.words].join(", ");
  made.append(element("div", { class: "top" }, element("span", { class: "name" }, node.name), element("span", { class: "type" }, words)));
  made.append(element("div", { class: "figures" }), element("div", { class: "steps" }), element("div", { class: "why" }));
  made.append(drawn("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" }, drawn("path", { class: "spark" })));
  made.addEventListener("click", () => { shown = node; showDetail(); $("#detail").showModal(); });
  return made;
}

function updateCard(node, card) {
  card.className = `card ${health(node)}`;
  const pairs = figures(node).map(([label, value]) => element("span", {}, element("b", {}, value), ` ${label}`));
  card.querySelector(".figures").replaceChildren(...pairs);
  card.querySelector(".why").textContent = why(node);
  const steps = node.interceptors.map((one) => {
    const dropped = figure(one, "EventFilteredCount");
    const text = `${one.name}: ${short(rate(one, "EventReceivedCount") || 0)}/s${dropped ? `, ${short(dropped)} dropped` : ""}`;
    return element("span", { title: one.type }, text);
  });
  card.querySelector(".steps").replaceChildren(...steps);
  card.querySelector(".spark").setAttribute("d", line(values(node, MAIN[node.kind], true), 100, 22));
}

// --- charts

function values(node, counter, asRate) {
  const found = history.series[node.metrics]?.[counter] || [];
  const times = history.times;
  return found.map((value, i) => {
    const before = found[i - 1];
    if (value === null || i === 0) return asRate ? null : value;
    if (times[i] - times[i - 1] > 3 * history.every) return null; // the agent slept: a gap
    return asRate ? (before === null ? null : Math.max(0, (value - before) / (times[i] - times[i - 1]))) : value;
  });
}

function line(numbers, width, height) {
  const end = history.times.length ? history.times[history.times.length - 1] : 0;
  const most = Math.max(1e-9, ...numbers.filter((v) => v !== null));
  let path = "", pen = "M";
  numbers.forEach((value, i) => {
    if (value === null) { pen = "M"; return; }
    const x = width * (1 - (end - history.times[i]) / history.kept);
    path += `${pen}${x.toFixed(2)},${(height - 1 - (height - 2) * (value / most)).toFixed(2)}`;
    pen = "L";
  });
  return path;
}

// --- the graph

function build() {
  document.title = $("#name").textContent = graph.agent;
  for (const kind of ["source", "channel", "sink"]) {
    const column = $(`#${kind}s`), nodes = graph.nodes.filter((node) => node.kind === kind);
    for (const node of nodes) {
      const card = makeCard(node);
      cards.set(node.id, card);
      column.append(card);
    }
    if (nodes.length >= DENSE) $("#graph").classList.add("dense");
  }
  $("#filter").hidden = graph.nodes.length < 8;
  $("#filter").addEventListener("input", () => { filter(); wires(); });
  window.addEventListener("resize", wires);
}

function filter() {
  const wanted = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const node of graph.nodes) {
    const text = [node.name, node.type, ...node.words, health(node)].join(" ").toLowerCase();
    cards.get(node.id).hidden = !wanted.every((word) => text.includes(word));
  }
}

function flow(edge, nodes) {
  const start = nodes.get(edge.start), end = nodes.get(edge.end);
  if (edge.kind === "overflow") return figure(start, "Overflowing") ? rate(end, MAIN.channel) : 0;
  if (edge.kind === "topic") return rate(end, MAIN.channel);
  if (end.kind === "sink") return rate(end, MAIN.sink);
  const ways = graph.edges.filter((other) => other.start === edge.start);
  return ways.every((way) => !way.label) ? rate(start, MAIN.source) : undefined;
}

function wires() {
  const svg = $("#edges"), frame = $("#graph").getBoundingClientRect();
  const nodes = new Map(graph.nodes.map((node) => [node.id, node]));
  const parts = [];
  for (const edge of graph.edges) {
    const from = cards.get(edge.start), to = cards.get(edge.end);
    if (from.hidden || to.hidden) continue;
    const a = from.getBoundingClientRect(), b = to.getBoundingClientRect();
    const back = edge.kind === "topic" || edge.kind === "overflow";
    const x1 = (back ? a.left : a.right) - frame.left, y1 = a.top + a.height / 2 - frame.top;
    const x2 = (edge.kind === "topic" ? b.right : b.left) - frame.left, y2 = b.top + b.height / 2 - frame.top;
    const bend = edge.kind === "overflow" ? -40 : Math.max(30, Math.abs(x2 - x1) / 2);
    const c1 = edge.kind === "topic" ? x1 - bend : edge.kind === "overflow" ? x1 + bend : x1 + bend;
    const c2 = edge.kind === "topic" ? x2 + bend : edge.kind === "overflow" ? x2 + bend : x2 - bend;
    const events = flow(edge, nodes);
    const classes = [events > 0 ? "flowing" : "", edge.kind !== "events" ? "dashed" : ""].join(" ").trim();
    parts.push(drawn("path", { d: `M${x1},${y1} C${c1},${y1} ${c2},${y2} ${x2},${y2}`, class: classes }));
    const label = [edge.label, events === undefined ? "" : `${short(events)}/s`].filter(Boolean).join(" · ");
    if (graph.edges.length <= 2 * DENSE) parts.push(drawn("text", { x: (x1 + x2) / 2, y: (y1 + y2) / 2 - 4 }, label));
  }
  svg.replaceChildren(...parts);
}

// --- the other sections

function sentence(text) { // what stands in it as a command can be copied
  const at = text.search(/\bagent (dlq|group|cluster|check|start|sandbox|audit|topic) /);
  return at < 0 ? [text] : [text.slice(0, at), element("code", {}, text.slice(at))];
}

function problems() {
  const found = [];
  for (const [kind, reasons] of [["failing", state.failing], ["degraded", state.degraded]]) {
    for (const [component, reason] of Object.entries(reasons)) {
      found.push(element("li", { class: kind }, element("span", { class: "component" }, `${component}: `), ...sentence(reason)));
    }
  }
  $("#problems ul").replaceChildren(...found);
  $("#problems").hidden = !found.length;
  const badge = $("#state");
  badge.textContent = badge.className = state.state;
  badge.classList.add("badge");
}

function said() {
  const rows = state.said.map((one) => element("li", { class: one.level },
    element("time", {}, new Date(one.at * 1000).toLocaleTimeString()), " ",
    element("span", { class: "component" }, `${one.component}: `), ...sentence(one.text)));
  $("#said").replaceChildren(...rows);
  $("#quiet").hidden = rows.length > 0;
}

function table(heads, rows) {
  const head = element("tr", {}, ...heads.map(([name, numeric]) => element("th", numeric ? { class: "number" } : {}, name)));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, i) => element("td", heads[i][1] ? { class: "number" } : {}, cell))));
  return element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
}

function kafka() {
  const clusters = state.kafka || [];
  $("#kafka").hidden = !clusters.length;
  const made = [];
  for (const one of clusters) {
    made.push(element("h3", {}, `${one.servers}: ${one.error || `cluster ${one.id}`}`));
    made.push(table([["Broker", true], ["Address"], ["State"], ["Leads", true]], one.brokers.map((b) => [
      `${b.id}`, b.address, element("span", { class: b.up ? "ok" : "failing" }, b.up ? "up" : "does not answer"), `${b.leads}`,
    ])));
    made.push(table([["Topic"], ["Partitions", true], ["Under-replicated", true], ["Without leader", true]],
      one.topics.map((t) => [t.name, `${t.partitions}`, `${t.under_replicated}`, `${t.leaderless}`])));
  }
  $("#kafka .tables").replaceChildren(...made);
}

async function files() {
  if (!graph.nodes.some((node) => node.kind === "source" && figure(node, "FollowedFileCount") !== undefined)) return;
  const wanted = $("#file-filter").value;
  const found = await ask(`api/files?match=${encodeURIComponent(wanted)}`);
  $("#files").hidden = !found.files.length && !wanted;
  $("#files-about").textContent = found.all > found.files.length
    ? `${found.files.length} of ${found.all.toLocaleString("en")} files, those with most left to read first` : "";
  $("#files tbody").replaceChildren(...found.files.map((file) => element("tr", {},
    element("td", {}, file.source), element("td", {}, file.path),
    element("td", { class: "number" }, short(file.position)), element("td", { class: "number" }, short(Math.max(0, file.size - file.position))),
    element("td", {}, element("progress", { max: Math.max(1, file.size), value: file.position })))));
}

function showDetail() {
  const node = shown, body = $("#detail-body");
  if (!node || !state) return;
  $("#detail-title").textContent = `${node.name} (${[node.type, ...node.words].join(", ")})`;
  const parts = [element("p", { class: "type" }, `${node.id}, ${node.place}`)];
  if (why(node)) parts.push(element("p", { class: health(node) }, ...sentence(why(node))));
  for (const counter of Object.keys(history.series[node.metrics] || {})) {
    const [label, asRate] = CHARTS[counter];
    const numbers = values(node, counter, asRate), most = Math.max(0, ...numbers.filter((v) => v !== null));
    if (!numbers.some((v) => v !== null)) continue;
    parts.push(element("div", { class: "chart-head" }, element("span", {}, label), element("span", {}, `at most ${short(most)} in the last hour`)));
    parts.push(drawn("svg", { class: "chart", viewBox: "0 0 1000 130", preserveAspectRatio: "none" }, drawn("path", { class: "spark", d: line(numbers, 1000, 130) })));
  }
  for (const one of [node, ...node.interceptors]) {
    if (one !== node) parts.push(element("h3", {}, `Interceptor ${one.name} (${one.type})`));
    const set = Object.entries(one.options).map(([name, value]) => [name, value, "set"]);
    const rest = Object.entries(one.defaults).map(([name, value]) => [name, value, "default"]);
    parts.push(table([["Option"], ["Value"], [""]], [...set, ...rest]));
    parts.push(table([["Figure"], ["Value", true]], Object.entries(state.figures[one.metrics] || {})));
  }
  body.replaceChildren(...parts);
}

// --- the loop

async function ask(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

async function turn() {
  try {
    const came = await ask("api/state");
    if (!graph || came.started !== state.started || came.configured !== state.configured) {
      if (graph) { location.reload(); return; } // another run, or another configuration
      graph = await ask("api/graph");
      state = came;
      build();
    }
    state = came;
    if (!history.at || Date.now() - history.at > 10000) history = { ...(await ask("api/history")), at: Date.now() };
    $("#about").textContent = `up ${span(state.time - state.started)} on ${state.host}, version ${state.version}, ${graph.file}`;
    for (const node of graph.nodes) updateCard(node, cards.get(node.id));
    problems(); said(); kafka(); filter(); wires();
    if ($("#detail").open && !String(getSelection())) showDetail();
    await files();
    $("#stale").hidden = true;
  } catch (error) {
    $("#stale").textContent = `The agent does not answer (${error.message}). What is shown is how it was.`;
    $("#stale").hidden = false;
  }
  setTimeout(turn, EVERY);
}

$("#file-filter").addEventListener("input", () => { files().catch(() => {}); });
turn();
