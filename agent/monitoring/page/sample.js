// Sample of the events that pass the component whose details are open.
"use strict";

import { element } from "./charts.js";

const MAX_REQUESTS = 150; // five minutes, so that a forgotten page does not sample for ever
const $ = (selector) => document.querySelector(selector);

export const sample = {
  component: "", remaining: 0, newest: -1,

  /** Select a component. Its events are requested only after `begin`. */
  select(component) {
    this.component = component;
    this.newest = -1;
    this.end();
    $("#sample-about").textContent = "";
    $("#sample-events").replaceChildren();
    $("#sample-events").hidden = true;
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
    $("#sample-about").textContent = answer.error || `${answer.passed.toLocaleString("en")} passed; the latest of a sample, newest first`;
    if (answer.error || !--this.remaining) this.end();
    if (answer.error) return;
    if (answer.events.length && answer.events[0].number < this.newest) this.newest = -1; // the agent has started a new sample
    const all = $("#sample-events"), fresh = answer.events.filter((event) => event.number > this.newest);
    if (fresh.length) this.newest = fresh[0].number;
    if (this.newest < 0 || fresh.length === answer.events.length) all.replaceChildren(...answer.events.map(row));
    else all.prepend(...fresh.map(row));
    while (all.children.length > answer.events.length) all.lastChild.remove();
    all.hidden = !answer.events.length;
  },
};

function row(event) {
  const time = new Date(event.time * 1000);
  const item = element("li", {}, element("time", { datetime: time.toISOString() }, time.toLocaleTimeString()), " ");
  if (event.id) item.append(element("span", { class: "type" }, event.id), " ");
  if (event.cut) item.append(element("span", { class: "type" }, `the start of ${event.size.toLocaleString("en")} bytes`));
  item.append(element("pre", {}, event.body));
  for (const [name, value] of Object.entries(event.headers)) item.append(element("span", { class: "header" }, `${name} = ${value}`), " ");
  return item;
}

$("#sample-button").addEventListener("click", () => { if (sample.remaining) sample.end(); else sample.begin(); });
