// What is wrong, the gravest first, as the agent says it; and the state in the tab's title and icon.
"use strict";

import { element, moment, show, span, timeElement } from "./texts.js";

const COLOURS = { ok: "#17734a", degraded: "#b87700", failing: "#c4281c", gone: "#80868f", unknown: "#80868f" };
const SIGNS = { ok: "M8 16l5 5 11-12", degraded: "M16 8v10M16 23v1", failing: "M10 10l12 12M22 10L10 22", gone: "M9 16h14", unknown: "M9 16h14" };
const $ = (selector) => document.querySelector(selector);
const items = new Map(); // of the list, by component and kind

/** Show the state in the badge, in the tab's title and in its icon. */
export function showState(agent, state, problems) {
  const own = problems.filter((problem) => !problem.cause).length;
  const count = own ? `, ${own} problem${own === 1 ? "" : "s"}` : "";
  const words = state === "gone" ? "no answer" : `${state}${count}`, badge = $("#state");
  if (badge.textContent !== words) badge.textContent = words; // screen readers announce each assignment
  badge.className = `badge ${state}`;
  document.title = `${state === "gone" ? "no answer" : state}${state !== "gone" && own ? ` (${own})` : ""}: ${agent}`;
  const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><circle cx="16" cy="16" r="16" fill="${COLOURS[state]}"/>` +
    `<path d="${SIGNS[state]}" fill="none" stroke="#fff" stroke-width="4" stroke-linecap="round"/></svg>`;
  const link = $("link[rel=icon]"), address = `data:image/svg+xml,${encodeURIComponent(icon)}`;
  if (link.getAttribute("href") !== address) link.setAttribute("href", address);
}

/** Show all problems. Those with a cause are named with the problem that causes them. */
export function showProblems(problems, now) {
  const listed = problems.filter((problem) => !problem.cause || !problems.some((other) => other.component === problem.cause && !other.cause));
  const keys = listed.map((problem) => `${problem.component} ${problem.kind}`);
  for (const [key, item] of items) if (!keys.includes(key)) { item.remove(); items.delete(key); }
  listed.forEach((problem, i) => {
    const item = items.get(keys[i]) ?? makeItem(keys[i]);
    update(item, problem, problems.filter((other) => other.cause === problem.component && other !== problem), now);
    const list = $("#problems ol");
    if (list.children[i] !== item) list.insertBefore(item, list.children[i] ?? null);
  });
  show($("#problems-title"), "What is wrong");
  $("#problems").hidden = !listed.length;
  $("#well").hidden = Boolean(listed.length);
}

/** Show the problems that have ended. */
export function showPast(past, isLocal) {
  $("#past").hidden = !past.length;
  show($("#past ol"), [past, isLocal], ([ended]) => ended.map((one) => element("li", {},
    element("b", {}, one.title), " ", element("span", { class: "component" }, one.component), " from ", timeElement(one.since), " to ", timeElement(one.until),
    ` (${span(one.until - one.since)})${one.times > 1 ? `, the latest of ${one.times} times` : ""}${one.error ? `: ${one.error}` : ""}`)));
}

/** Banner of a page whose agent does not answer: since when, what is lost if it has ended, and what to do. */
export function showAbsence(banner, error, answered, state, graph, isLocal) {
  const code = (text) => element("code", {}, text);
  const fact = (name, ...content) => element("div", { class: "fact" }, element("dt", {}, name), element("dd", {}, ...content));
  show(banner, [answered, state?.time, error, isLocal], () => {
    const since = answered === null ? [] : [" since ", timeElement(answered), element("span", { "aria-live": "off" })];
    const first = element("p", {}, "The agent does not answer", ...since, `: ${error}. It has ended or hangs, or the network of this browser does not reach it; this page keeps trying.`);
    if (state === null || graph === null) return [first];
    return [first, element("dl", {}, fact("Lost if it has ended", state.loss_at_end),
      fact("Do", `On ${state.host}, read the end of its log: `, code(`journalctl -n 50 -o with-unit _PID=${state.pid}`),
        ". If it has ended or hangs, restart it: ", code("systemctl restart SERVICE"), " with the service in the log, or ", code(`agent start ${graph.arguments || `-c ${graph.file}`}`), ".")),
    element("p", {}, "What is below was its state at ", timeElement(state.time), ", and may be wrong now.")];
  });
  if (answered !== null) banner.querySelector("span").textContent = ` (${span(Date.now() / 1000 - answered)})`; // not announced each time
  banner.hidden = false;
  show($("#problems-title"), [state?.time ?? null, isLocal], ([time]) => (time === null ? ["What is wrong"] : ["What was wrong at ", timeElement(time)]));
}

function makeItem(key) {
  const id = `problem-${items.size}-${key.replace(/[^\w-]/g, "-")}`;
  const fact = (name) => element("div", { class: `fact ${name.toLowerCase()}` }, element("dt", {}, name), element("dd"));
  const copy = element("button", { type: "button", class: "copy", "aria-live": "polite" }, "Copy");
  const command = element("div", { class: "fact command" }, element("dt", {}, "Run"), element("dd", {}, element("code"), " ", copy));
  const docs = element("div", { class: "fact docs" }, element("dt", {}, "Help"), element("dd", {}, element("a")));
  const item = element("li", { "aria-labelledby": id },
    element("div", { class: "top" }, element("span", { class: "chip" }), element("h3", { id })),
    element("p", { class: "since" }), element("dl", {}, ...["Error", "Consequence", "Lost", "Deadline", "Trend", "Do"].map(fact), command, docs, fact("Also")));
  copy.addEventListener("click", () => copyText(item.querySelector("code"), copy));
  items.set(key, item);
  return item;
}

function update(item, problem, caused, now) {
  item.className = problem.severity;
  const chip = item.querySelector(".chip");
  chip.className = `chip ${problem.severity}`;
  show(chip, problem.severity);
  show(item.querySelector("h3"), problem.title);
  const next = problem.retry_time === null ? "" : `; the next attempt ${problem.retry_time > now ? `is in ${span(problem.retry_time - now)}` : "is under way"}`;
  const attempts = problem.attempts ? `, ${problem.attempts.toLocaleString("en")} failed attempt${problem.attempts === 1 ? "" : "s"}` : "";
  show(item.querySelector(".since"), [problem.component, problem.since, span(Math.max(0, now - problem.since)), attempts, moment(problem.since), attempts ? next : ""], ([component, since, age, more, text, retry]) => [
    element("span", { class: "component" }, component), " since ",
    element("time", { datetime: new Date(since * 1000).toISOString() }, text), ` (${age})${more}`, element("span", { class: "next" }, retry)]);
  const fact = (name, text) => {
    const row = item.querySelector(`.${name}`);
    row.hidden = !text;
    show(row.querySelector("dd"), text);
  };
  const isLimited = problem.kind === "limited"; // its consequence is the text of its component
  fact("consequence", problem.effect);
  fact("lost", problem.loss);
  fact("deadline", problem.deadline);
  fact("trend", problem.trend);
  fact("do", problem.action);
  item.querySelector(".lost").classList.toggle("worse", /^([1-9]|All )/.test(problem.loss));
  item.querySelector(".trend").classList.toggle("worse", problem.trend.startsWith("Getting worse"));
  fact("error", isLimited ? "" : withoutCommand(problem.error, problem.command));
  const names = [...new Set(caused.map((other) => other.component))];
  fact("also", names.length ? `This also affects ${names.join(", ")}.` : "");
  item.querySelector(".command").hidden = !problem.command;
  show(item.querySelector("code"), problem.command);
  const link = item.querySelector("a");
  link.setAttribute("href", `help#${problem.docs.split("#")[1] ?? ""}`);
  show(link, problem.docs.replace("#", ": ").replaceAll("-", " ").replace(".md", ""));
}

/** Text of an error without the command at its end, which stands below. */
export function withoutCommand(error, command) {
  const text = command && error.endsWith(command) ? error.slice(0, -command.length) : error;
  return text.replace(/[\s:;,]+$/, "");
}

async function copyText(code, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch { // without HTTPS there is no clipboard: select the text and use the older command
    getSelection().selectAllChildren(code);
    done = document.execCommand("copy");
  }
  button.textContent = done ? "Copied" : "Press Ctrl-C";
  setTimeout(() => { button.textContent = "Copy"; }, 3000);
}
