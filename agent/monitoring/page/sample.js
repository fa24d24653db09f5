// Events as they pass the component whose details are open.
"use strict";

import { element } from "./charts.js";

const TURNS = 150; // five minutes: a page that is left open listens no longer
const $ = (selector) => document.querySelector(selector);

export const sample = {
  component: "", left: 0, newest: -1,

  /** Another component is looked at; its events once they are asked for. */
  of(component) {
    this.component = component;
    this.newest = -1;
    this.end();
    $("#sample-about").textContent = "";
    $("#sample-events").replaceChildren();
    $("#sample-events").hidden = true;
  },

  begin() {
    this.left = TURNS;
    $("#sample-button").textContent = "Stop";
    $("#sample-about").textContent = "…";
  },

  /** Nobody asks for it any more, so that the agent ends it within seconds. */
  end() {
    this.left = 0;
    $("#sample-button").textContent = "Show";
  },

  async turn(ask) {
    if (!this.left) return;
    const wanted = this.component, came = await ask(`api/sample?component=${encodeURIComponent(wanted)}`);
    if (wanted !== this.component || !this.left) return;
    $("#sample-about").textContent = came.error || `${came.passed.toLocaleString("en")} passed; a few of them, the newest first`;
    if (came.error || !--this.left) this.end();
    if (came.error) return;
    if (came.events.length && came.events[0].number < this.newest) this.newest = -1; // it began anew
    const all = $("#sample-events"), fresh = came.events.filter((event) => event.number > this.newest);
    if (fresh.length) this.newest = fresh[0].number;
    if (this.newest < 0 || fresh.length === came.events.length) all.replaceChildren(...came.events.map(row));
    else all.prepend(...fresh.map(row));
    while (all.children.length > came.events.length) all.lastChild.remove();
    all.hidden = !came.events.length;
  },
};

function row(event) {
  const at = new Date(event.time * 1000);
  const made = element("li", {}, element("time", { datetime: at.toISOString() }, at.toLocaleTimeString()), " ");
  if (event.id) made.append(element("span", { class: "type" }, event.id), " ");
  if (event.cut) made.append(element("span", { class: "type" }, `the start of ${event.size.toLocaleString("en")} bytes`));
  made.append(element("pre", {}, event.body));
  for (const [name, value] of Object.entries(event.headers)) made.append(element("span", { class: "header" }, `${name} = ${value}`), " ");
  return made;
}

$("#sample-button").addEventListener("click", () => { if (sample.left) sample.end(); else sample.begin(); });
