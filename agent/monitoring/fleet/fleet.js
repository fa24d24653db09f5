// The page of a fleet: requests `api/fleet` at the interval of the polls, and shows a row for each agent.
"use strict";

const SEVERITY = ["failing", "unreachable", "degraded", "unknown", "ok"];
const TEXTS = ["severity", "agent", "version"]; // sorted upwards at first; figures downwards

const COUNT = new Intl.NumberFormat("en"); // toLocaleString would make one for each call

const $ = (selector) => document.querySelector(selector);
const rows = new Map();
let fleet = null, order = { key: "severity", up: true }, updates = 0, answered = null;

/** Create an element. Children are set as text or nodes, never as HTML: the text may come from an attacker. */
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function short(number) {
  if (number === undefined || number === null) return "–";
  for (const [size, unit] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (number >= Math.max(size, 1e4)) return (number / size).toFixed(1) + unit;
  }
  return number >= 100 || Number.isInteger(number) ? COUNT.format(Math.round(number)) : number.toFixed(1);
}

function span(seconds) {
  if (seconds === undefined || seconds === null) return "–";
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} d`;
}

const utc = (seconds) => `${new Date(1000 * seconds).toISOString().slice(0, 19).replace("T", " ")} UTC`;

function since(agent) {
  if (agent.state === "unknown") return "not polled yet";
  if (agent.state === "unreachable" && agent.answered === null) return `no answer yet, since ${utc(fleet.started)}`;
  return agent.first ? `since before ${utc(agent.since)}` : `since ${utc(agent.since)}`;
}

/** The contents of the cell with an agent's name and its worst problem. */
function name(agent) {
  const contents = [element("a", { href: `api/agents/${agent.number}`, rel: "noreferrer" }, agent.agent ?? agent.address),
    element("span", { class: "soft" }, agent.agent ? ` ${agent.host}, ${agent.address}` : "")];
  if (agent.reason) contents.push(element("div", { class: "why" }, agent.reason));
  if (agent.problems > 1 && agent.state !== "unreachable") contents.push(element("div", { class: "soft" }, `and ${agent.problems - 1} more`));
  return contents;
}

/** The contents of the cell with the lines of the configuration that most agents do not have. */
function configuration(agent) {
  if (!agent.differences) return [agent.agent ? "as usual" : "–"];
  const details = element("details", {}, element("summary", {}, `${agent.differences} line${agent.differences === 1 ? "" : "s"} differ${agent.differences === 1 ? "s" : ""}`),
    element("ul", {}, ...agent.different.map((text) => element("li", {}, text))));
  if (agent.differences > agent.different.length) details.append(`and ${agent.differences - agent.different.length} more`);
  return [details];
}

/**
 * For each of an agent's cells in the order of the columns, the values that it shows, and a function that makes its
 * contents. Elements are made for changed cells only: those of hundreds of rows take tens of milliseconds.
 */
function cells(agent) {
  const text = (shown) => [shown, () => [shown]];
  const unit = agent.lag === null || !agent.lag_unit ? "" : ` ${agent.lag_unit}`;
  return [
    [[agent.state, since(agent)], () => [element("span", { class: `chip ${agent.state}` }, agent.state), element("div", { class: "soft" }, since(agent))]],
    [[agent.agent, agent.host, agent.reason, agent.problems, agent.state], () => name(agent)],
    text(short(agent.accepted)),
    text(short(agent.delivered)),
    [[short(agent.lag), unit], () => [short(agent.lag), element("span", { class: "soft" }, unit)]],
    text(span(agent.behind)),
    text(short(agent.dead_letters)),
    [[agent.version, agent.version_differs], () => [agent.version ?? "–", agent.version_differs ? element("div", { class: "differs" }, "differs") : ""]],
    [[agent.agent, agent.differences, agent.different], () => configuration(agent)],
  ];
}

/** Show an agent in its row. Only cells whose contents changed are replaced, to preserve focus, selections and opened details. */
function show(agent) {
  let row = rows.get(agent.number);
  if (!row) {
    const heads = [...document.querySelectorAll("th")];
    const tr = element("tr", { "data-number": agent.number }, ...heads.map((head) => element("td", { class: head.className })));
    rows.set(agent.number, row = { tr, text: "", shown: [] });
  }
  const text = JSON.stringify(agent, (key, value) => (key === "answered" && value !== null ? true : value));
  row.agent = agent;
  if (text === row.text) return;
  row.text = text;
  row.tr.className = agent.state;
  row.search = [agent.agent, agent.host, agent.address, agent.state, agent.version, agent.version_differs || agent.differences ? "differs" : ""].join(" ").toLowerCase();
  cells(agent).forEach(([values, contents], column) => {
    const shown = JSON.stringify(values), cell = row.tr.children[column];
    if (row.shown[column] === shown) return;
    row.shown[column] = shown;
    const open = cell.querySelector("details")?.open;
    cell.replaceChildren(...contents());
    if (open && cell.querySelector("details")) cell.querySelector("details").open = true;
  });
}

function sort() {
  const value = (agent) => (order.key === "severity" ? SEVERITY.indexOf(agent.state) : agent[order.key]) ?? "";
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : a === "" || b === "" ? (a === "") - (b === "") : `${a}`.localeCompare(`${b}`));
  const sorted = [...rows.values()].sort((a, b) => {
    const [x, y] = [value(a.agent), value(b.agent)];
    const unknownLast = x === "" || y === "";
    return (order.up || unknownLast ? 1 : -1) * compare(x, y) || a.agent.number - b.agent.number;
  }).map((row) => row.tr);
  const body = $("tbody");
  if (sorted.some((tr, index) => body.children[index] !== tr)) body.replaceChildren(...sorted);
}

function filter() {
  const words = $("#filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows.values()) row.tr.hidden = !words.every((word) => row.search.includes(word));
}

function summary() {
  const counts = SEVERITY.map((state) => [state, fleet.agents.filter((agent) => agent.state === state).length]).filter(([, count]) => count);
  const text = counts.map(([state, count]) => `${count} ${state}`).join(", ");
  if ($("#states").dataset.text === text) return; // screen readers announce each change
  $("#states").dataset.text = text;
  $("#states").replaceChildren(...counts.map(([state, count]) => element("li", { class: `chip ${state}` }, `${count} ${state}`)));
  document.title = `${text}: ${fleet.agents.length} agents`;
  const colour = counts[0][0] === "ok" ? "%2317734a" : counts[0][0] === "degraded" ? "%238a5700" : "%23b3261e";
  $("link[rel=icon]").href = `data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 8 8'><circle cx='4' cy='4' r='4' fill='${colour}'/></svg>`;
}

async function update() {
  try {
    const answer = await fetch("api/fleet", { cache: "no-store", signal: AbortSignal.timeout(10000) })
      .catch((error) => { throw new Error(error.name === "TimeoutError" ? "no answer in 10 s" : "no connection"); }); // each browser has other words
    if (!answer.ok) throw new Error((await answer.text()).trim());
    fleet = await answer.json();
    answered = Date.now() / 1000;
    for (const agent of fleet.agents) show(agent);
    sort();
    filter();
    summary();
    $("#stale").hidden = true;
    document.body.classList.remove("stale");
    document.body.dataset.updates = ++updates;
  } catch (error) {
    const text = `agent dashboard does not answer (${error.message}). The figures are those of ${answered === null ? "no time" : utc(answered)}.`;
    if ($("#stale").textContent !== text) $("#stale").textContent = text; // screen readers announce each assignment
    $("#stale").hidden = false;
    document.body.classList.add("stale");
    document.title = "no answer: agents";
  }
  setTimeout(update, 1000 * (fleet?.interval ?? 2));
}

for (const head of document.querySelectorAll("th")) {
  head.querySelector("button").addEventListener("click", () => {
    const key = head.dataset.key;
    order = { key, up: order.key === key ? !order.up : TEXTS.includes(key) };
    for (const other of document.querySelectorAll("th")) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order.up ? "ascending" : "descending");
    sort();
  });
}
$("#filter").addEventListener("input", filter);
update();
