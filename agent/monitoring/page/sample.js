// Sample of the events that pass the component whose details are open.
"use strict";

import { element, timeElement } from "./texts.js";

const MAX_REQUESTS = 150; // five minutes, so that a forgotten page does not sample for ever
const $ = (selector) => document.querySelector(selector);

export const sample = {
  component: "", remaining: 0, newest: { before: -1, after: -1 },

  /** Select a component, with its interceptors as further places. Events are requested only after `begin`. */
  select(node) {
    const places = [[node.id, `at the end of ${node.name}`], ...node.interceptors.map((one) => [one.id, `before and after ${one.name} (${one.type})`])];
    $("#sample-place").replaceChildren(...places.map(([id, text]) => element("option", { value: id }, text)));
    $("#sample-place").hidden = places.length < 2;
    this.choose(node.id);
  },

  /** Choose a place: the component, or one of its interceptors. */
  choose(component) {
    this.component = component;
    $("#sample-place").value = component;
    this.newest = { before: -1, after: -1 };
    this.end();
    $("#sample-about").textContent = "";
    for (const id of ["#sample-before", "#sample-events"]) { $(id).replaceChildren(); $(id).hidden = true; }
    for (const head of document.querySelectorAll("#sample .stage")) head.hidden = true;
  },

  begin() {
    this.remaining = MAX_REQUESTS;
    $("#sample-button").textContent = "Stop";
    $("#sample-about").textContent = "…";
  },

  /** Stop the requests, so that the agent ends the sample within seconds. */
  end() {
    this.remaining = 0;
    $("#sample-button").textContent = "Show";
  },

  async update(fetchJson) {
    if (!this.remaining) return;
    const component = this.component, answer = await fetchJson(`api/sample?component=${encodeURIComponent(component)}`);
    if (component !== this.component || !this.remaining) return;
    $("#sample-about").setAttribute("aria-live", answer.error ? "polite" : "off"); // the number changes every two seconds
    $("#sample-about").textContent = answer.error || `${answer.passed.toLocaleString("en")} events passed; the latest of a sample, newest first`;
    if (answer.error || !--this.remaining) this.end();
    if (answer.error) return;
    const isInterceptor = "before" in answer;
    for (const head of document.querySelectorAll("#sample .stage")) head.hidden = !isInterceptor;
    list($("#sample-events"), answer.events, "after", this.newest);
    if (!isInterceptor) return;
    if (answer.before === null) $("#sample-before-about").textContent = "Hidden, as this interceptor redacts: use agent tap.";
    else $("#sample-before-about").textContent = "";
    list($("#sample-before"), answer.before ?? [], "before", this.newest);
  },
};

/** Show the events of one stage: new ones come first, and those that are there stay. */
function list(all, events, stage, newest) {
  if (events.length && events[0].number < newest[stage]) newest[stage] = -1; // the agent has started a new sample
  const fresh = events.filter((event) => event.number > newest[stage]), isNew = newest[stage] < 0;
  if (fresh.length) newest[stage] = fresh[0].number;
  if (isNew || fresh.length === events.length) all.replaceChildren(...events.map(row));
  else all.prepend(...fresh.map(row));
  while (all.children.length > events.length) all.lastChild.remove();
  all.hidden = !events.length;
}

function row(event) {
  const item = element("li", {}, timeElement(event.time), " ");
  if (event.id) item.append(element("span", { class: "type" }, event.id), " ");
  if (event.cut) item.append(element("span", { class: "type" }, `the start of ${event.size.toLocaleString("en")} bytes`));
  item.append(element("pre", {}, event.body));
  for (const [name, value] of Object.entries(event.headers)) item.append(element("span", { class: "header" }, `${name} = ${value}`), " ");
  return item;
}

$("#sample-button").addEventListener("click", () => { if (sample.remaining) sample.end(); else sample.begin(); });
$("#sample-place").addEventListener("change", (event) => sample.choose(event.target.value));
