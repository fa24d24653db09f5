"""Essentials of the page in each state, which every browser has to show a woken-up reader at every width."""

from __future__ import annotations

import re
from typing import Any

from tests.agent.browsing import overlaps

WIDTHS = (1400, 768, 375)
"""Widths in pixels of a desk, a tablet and a phone."""
NARROW = 760
"""Width in pixels up to which cards stand below each other, without wires."""
TIME = r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC"
TITLES = {
    "well": "ok: collector",
    "source fails": "failing (1): collector",
    "sink fails": "failing (2): collector",
    "brokers away": "failing (2): collector",
    "overflow filling": "degraded (1): collector",
    "dead letters": "degraded (1): collector",
    "agent gone": "no answer: collector",
}
ICONS = {"ok": "17734a", "degraded": "b87700", "failing": "c4281c", "no answer": "80868f"}
FIRST: dict[str, tuple[str, ...]] = {
    "source fails": (
        'Source "syslog" (syslogtcp) does not work.',
        "collector.sources.syslog since",
        " min), 63 failed attempts",
        "All events that are sent to this port: they reach the other program.",
        "Getting worse as long as senders send to this port.",
        "Stop the other program at TCP port 5514, or choose another port.",
        "sudo ss -ltnp 'sport = :5514'",
        "another program listens there",
    ),
    "sink fails": (
        'Sink "search" (solr) does not deliver.',
        " min), 108 failed attempts",
        "3.5 M events wait in collector.channels.events, the oldest for 44 min.",
        "Nothing yet.",
        " UTC (4.2 h left): then Kafka deletes the oldest events.",
        "Getting worse: 1,330 more events wait every second.",
        "Start the server at solr-1:8983, or repair the network to it.",
        "agent check --connect -c ",
        "Connection refused",
    ),
    "brokers away": (
        'All 3 brokers of channel "events" are away.',
        "Start the brokers, or repair the network between this host and them.",
        "collector.channels.events since",
        " min), 26 failed attempts",
        "4 sources cannot store events, the longest for 9 min. 5 sinks get no events.",
        " k datagrams of firewall since 20",
        " UTC. Senders to syslog wait, and lose events once their own "
        "buffers are full. Nothing of orders, audit: files are read later.",
        "Getting worse: 850 datagrams are lost every second.",
        "This also affects collector.sources.",
    ),
    "overflow filling": (
        'Channel "events" stores events on a disk of this host, as brokers do not take them.',
        "798.0 k events are on one disk of this host only. collector.channels.spill is 80 % full. The disk has "
        "74.0 GB free. 5 sinks get no new events.",
        "To gain time, raise collector.channels.spill.capacity, now 1,000,000, in ",
        "agent reload -c ",
        "Nothing, as long as the disk of this host is intact.",
        " UTC (2 min left): then sources wait, and datagrams of firewall are lost.",
        "Getting worse: 1,330 more events wait every second.",
    ),
    "dead letters": (
        'Sink "index" has rejected events, which are dead letters now.',
        "dead letters since the agent started.",
        "Nothing. The dead letters have the bytes and the reason, and can be delivered again.",
        "Getting worse: 2 events are rejected every second.",
        "agent dlq list -c ",
        "cannot parse [price]",
    ),
}
FIRST["agent gone"] = FIRST["sink fails"]
MINUTES = {
    "source fails": 25,
    "sink fails": 44,
    "brokers away": 9,
    "overflow filling": 10,
    "dead letters": 10,
    "agent gone": 44,
}
"""Age of the first problem when the scene is made; a busy machine shows it minutes later."""
STARVED = {"brokers away": 4, "overflow filling": 5}
"""Numbers of sinks that work and get no events."""

WATCH = """() => {
  window.violations = [];
  document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.blockedURI));
}"""
"""Script that runs before the page's own: it records violations of the content security policy."""
MEASURE = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const visible = (element) => element.checkVisibility({ visibilityProperty: true });
  const boxes = (selector) => all(selector).map((element) => element.getBoundingClientRect().toJSON());
  const labelBox = (element) => { // without its outline, which Firefox would include
    const box = element.getBBox(), frame = document.querySelector("#edges").getBoundingClientRect();
    const { width, height } = box, text = element.textContent;
    return { x: frame.x + box.x, y: frame.y + box.y, width, height, text };
  };
  const text = (element) => element?.innerText ?? "";
  const referred = (ids) => ids.split(" ").map((id) => text(document.getElementById(id))).join(" ");
  const name = (element) => element.getAttribute("aria-label")
    || referred(element.getAttribute("aria-labelledby") ?? "")
    || [...(element.labels ?? [])].map(text).join("") || text(element);
  const html = (element) => element.outerHTML.slice(0, 120);
  const interactive = all("a, button, input, select, summary, [tabindex]").filter(visible);
  const reached = "a, button, input, select, summary, [tabindex='0']";
  const scrolls = (element) => ["auto", "scroll"].some((way) => getComputedStyle(element).overflow.includes(way))
    && (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1);
  return {
    title: document.title,
    icon: document.querySelector("link[rel=icon]").getAttribute("href"),
    first: document.querySelector("#problems:not([hidden]) li")?.innerText ?? "",
    well: document.querySelector("#well:not([hidden])")?.innerText ?? "",
    past: document.querySelector("#past:not([hidden]) li")?.innerText ?? "",
    stale: document.querySelector("#stale:not([hidden])")?.innerText ?? "",
    dark: matchMedia("(prefers-color-scheme: dark)").matches,
    width: innerWidth,
    scrollWidth: document.documentElement.scrollWidth,
    cards: boxes(".card"),
    starved: all(".card.starved").length,
    wires: visible(document.querySelector("#edges")),
    edges: document.querySelectorAll("#edges .wire").length,
    labels: all("#edges text").filter(visible).map(labelBox),
    unnamed: interactive.filter((element) => !name(element).trim()).map(html),
    unreachable: all("body *").filter(visible).filter(scrolls)
      .filter((element) => !element.matches(reached) && !element.querySelector(reached)).map(html),
    violations: window.violations ?? [],
  };
}"""
"""Function of the page that returns what `check` and `check_access` take."""


def check(state: str, measured: dict[str, Any]) -> None:
    """Check what a browser shows in one state, at one width and in one theme."""
    title, width = measured["title"], measured["width"]
    assert title == TITLES[state]
    assert f"%23{next(colour for word, colour in ICONS.items() if title.startswith(word))}" in measured["icon"]
    if state in FIRST:
        assert re.search(TIME, measured["first"]), measured["first"]
        assert [text for text in FIRST[state] if text not in measured["first"]] == [], measured["first"]
        age = re.search(r"since .* \((\d+) min\)", measured["first"])
        assert age is not None, measured["first"]
        assert 0 <= int(age[1]) - MINUTES[state] < 5
    else:
        assert not measured["first"]
    assert measured["well"].startswith("Nothing is wrong") == (state == "well")
    assert ("Since the agent started, no datagram was lost" in measured["well"]) == (state == "well")
    said = rf"The agent does not answer since {TIME} \(\d+ s\): no connection\..*"
    said += r"Lost if it has ended\W*40 events in collector\.channels\.quick, which is in memory\. All datagrams to "
    said += (
        r"firewall until.*journalctl -n 50 -o with-unit _PID=\d+\..*agent start -c \S+/collector\.conf -n collector\."
    )
    assert bool(re.match(said, measured["stale"], re.DOTALL)) == (state == "agent gone"), measured["stale"]
    assert (measured["past"].startswith('Sink "search" (solr) does not deliver. collector.sinks.search from 20')) == (
        state == "well"
    ), measured["past"]
    assert ("(44 min), the latest of 2 times: http://solr-1:8983" in measured["past"]) == (state == "well")

    assert measured["starved"] == STARVED.get(state, 0)
    assert measured["scrollWidth"] <= width, "it scrolls sideways"
    assert all(card["width"] > 150 and card["x"] + card["width"] <= width for card in measured["cards"])
    assert measured["wires"] == (width > NARROW)
    labels = measured["labels"]
    assert len(labels) == (measured["edges"] if width > NARROW else 0), "a wire has no place for its label"
    assert not overlaps(labels), overlaps(labels)
    assert not [pair for pair in overlaps([*measured["cards"], *labels]) if pair[0] in labels], "a card hides a label"
    check_access(measured)


def check_access(measured: dict[str, Any]) -> None:
    """Check what a reader without a mouse or without eyes needs, of the page or of an opened dialog."""
    assert measured["unnamed"] == [], "a screen reader has no name for it"
    assert measured["unreachable"] == [], "it scrolls, but not by the keyboard"
    assert measured["violations"] == [], "the content security policy forbids it"
