"""Steps of a plan: one typed call for each thing that users, operators, other programs and accidents do.

Each call returns a `Step`, whose text is the same call. `after` is the number of seconds since the step before.
Runs carry a step out by their method `do_NAME`.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

from tests.simulator.faults import Kind

Host = Literal["h1", "h2", "h3"]
"""Hosts with an agent each; plans of one agent use h1."""
Readers = Literal["", "stopped", "asleep", "slow"]
Sleep = Literal["asleep", "gone"]
"""Fate of a process: SIGSTOP for a while, or SIGKILL."""


class Step(NamedTuple):
    """One thing that happens in a run."""

    name: str
    arguments: dict[str, Any]
    after: float
    """Seconds since the step before."""

    def __str__(self) -> str:
        arguments = {**self.arguments, **({"after": self.after} if self.after else {})}
        return f"{self.name}({', '.join(_argument(name, value) for name, value in arguments.items())})"


def _argument(name: str, value: Any) -> str:
    if isinstance(value, Kind):
        text = f"Kind.{value.name}"
    else:
        text = json.dumps(value) if isinstance(value, str) else repr(value)
    return text if name == "host" else f"{name}={text}"


# --- the channel's topic and its records


def topic(partitions: int, *, after: float = 0.0) -> Step:
    """Create the channel's topic before any agent does."""
    return Step("topic", {"partitions": partitions}, after)


def partitions(total: int, *, after: float = 0.0) -> Step:
    """Add partitions to the channel's topic until there are `total`."""
    return Step("partitions", {"total": total}, after)


def put(*, good: int = 0, bad: int = 0, after: float = 0.0) -> Step:
    """Put one batch: `good` events that can be delivered, then `bad` ones that the sink rejects."""
    return Step("put", {name: number for name, number in (("good", good), ("bad", bad)) if number}, after)


def stream(batches: int, *, every: float, after: float = 0.0) -> Step:
    """Put one small batch every so many seconds while the next steps happen."""
    return Step("stream", {"batches": batches, "every": every}, after)


def put_elsewhere(records: int, *, after: float = 0.0) -> Step:
    """Produce records of one event each into the topic, as agents on other hosts do."""
    return Step("put_elsewhere", {"records": records}, after)


def in_flight(most: int, *, after: float = 0.0) -> Step:
    """Let sources have so many batches in flight at a time."""
    return Step("in_flight", {"most": most}, after)


def retention(partition: int, *, left: int, readers: Readers = "", after: float = 0.0) -> Step:
    """Remove all but the last `left` records of a partition, after something befell its readers."""
    arguments = {"partition": partition, "left": left}
    return Step("retention", arguments | ({"readers": readers} if readers else {}), after)


def truncate(partition: int, *, lost: int, after: float = 0.0) -> Step:
    """Elect a leader that lacks the last `lost` records of a partition."""
    return Step("truncate", {"partition": partition, "lost": lost}, after)


def backup(*, after: float = 0.0) -> Step:
    """Copy the brokers' disks."""
    return Step("backup", {}, after)


def set_back(*, cold: bool, after: float = 0.0) -> Step:
    """Replace the brokers' disks by the latest copy; a `cold` one repeats the leader epochs since."""
    return Step("set_back", {"cold": cold}, after)


def recreate(*, events: int, after: float = 0.0) -> Step:
    """Delete the topic, create it again, and have another agent put events into it."""
    return Step("recreate", {"events": events}, after)


def limit(topic: Literal["channel", "sink"], *, delay: float, seconds: float, after: float = 0.0) -> Step:
    """Put a large event, lower `max.message.bytes` after `delay`, put another one; raise it again after `seconds`."""
    return Step("limit", {"topic": topic, "delay": delay, "seconds": seconds}, after)


# --- the consumer group


def inherit(metadata: str, *, offset: int, after: float = 0.0) -> Step:
    """Commit offsets with that metadata for the group before the first agent starts."""
    return Step("inherit", {"metadata": metadata, "offset": offset}, after)


def reset(to: Literal["earliest", "same", "middle"], *, after: float = 0.0) -> Step:
    """Run `agent group reset` for each partition in which the group has an offset."""
    return Step("reset", {"to": to}, after)


def delete_group(*, after: float = 0.0) -> Step:
    """Delete the consumer group, unless it has members."""
    return Step("delete_group", {}, after)


def foreign(partition: int, *, ahead: int, after: float = 0.0) -> Step:
    """Commit an offset for the group from another program, so many records ahead of the committed one."""
    return Step("foreign", {"partition": partition, "ahead": ahead}, after)


def abandon(how: Literal["expire", "delete"], *, left: int, overtaken: bool, after: float = 0.0) -> Step:
    """Stop all agents until the group's offsets are gone; where `overtaken`, retention leaves `left` records."""
    return Step("abandon", {"how": how, "left": left, "overtaken": overtaken}, after)


def expect_stopped(partition: int, *, after: float = 0.0) -> Step:
    """Fail unless the group waits for an operator's decision on a partition that has lost records."""
    return Step("expect_stopped", {"partition": partition}, after)


# --- agents


def start(host: Host = "h1", *, after: float = 0.0) -> Step:
    """Start the agent on a host, unless it runs."""
    return Step("start", {"host": host}, after)


def stop(host: Host = "h1", *, after: float = 0.0) -> Step:
    """Ask the agent to shut down, as SIGTERM does."""
    return Step("stop", {"host": host}, after)


def kill(host: Host = "h1", *, after: float = 0.0) -> Step:
    """Kill the agent, as SIGKILL does."""
    return Step("kill", {"host": host}, after)


def pause(host: Host = "h1", *, seconds: float, after: float = 0.0) -> Step:
    """Let the agent sleep, as under SIGSTOP."""
    return Step("pause", {"host": host, "seconds": seconds}, after)


def exhaust(host: Host, *, seconds: float, after: float = 0.0) -> Step:
    """Leave the agent without a file descriptor for a while."""
    return Step("exhaust", {"host": host, "seconds": seconds}, after)


def swap(host: Host, *, seconds: float, after: float = 0.0) -> Step:
    """Start the agent on `host`, and kill the other one so many seconds later, amid the rebalance."""
    return Step("swap", {"host": host, "seconds": seconds}, after)


def caught(host: Host, *, call: str, how: Sleep, meanwhile: str, after: float = 0.0) -> Step:
    """Pause or kill the agent at its next call of that name, during short outages of the brokers."""
    return Step("caught", {"host": host, "call": call, "how": how, "meanwhile": meanwhile}, after)


def fail_next(process: str, call: str, kind: Kind, *, on: str = "", seconds: float = 0.0, after: float = 0.0) -> Step:
    """Let the next call of that name by a process fail; `on` is the topic or path, where it matters."""
    return Step(
        "fail_next",
        {"process": process, "call": call, "kind": kind}
        | ({"on": on} if on else {})
        | ({"seconds": seconds} if seconds else {}),
        after,
    )


def drain(host: Host, *, other: Literal["runs", "dies", "stops"], events: int, after: float = 0.0) -> Step:
    """Stop the agent on `host`, put events, and drain its channel while the other agent runs, dies or stops."""
    return Step("drain", {"host": host, "other": other, "events": events}, after)


def clock(seconds: float, *, after: float = 0.0) -> Step:
    """Step the wall clock."""
    return Step("clock", {"seconds": seconds}, after)


def mend(*, after: float = 0.0) -> Step:
    """Change all configurations so that rejected events can be delivered, or back; running agents restart."""
    return Step("mend", {}, after)


def root(host: Host, *, after: float = 0.0) -> Step:
    """Change `hdfs.path` on a host, and restart its agent if it runs."""
    return Step("root", {"host": host}, after)


def replay(*, after: float = 0.0) -> Step:
    """Run `agent dlq replay` for all dead letters that were not replayed yet."""
    return Step("replay", {}, after)


def replay_span(
    seconds: int,
    *,
    kill_after: float | None = None,
    anew: bool = False,
    when: Literal["now", "late"] = "now",
    after: float = 0.0,
) -> Step:
    """Run `agent replay` for the last `seconds`, or for all with 0: now or once all agents have ended.

    Its process is killed after `kill_after` seconds and run again; `anew` repeats it with `--again`.
    """
    arguments = {"seconds": seconds, "kill_after": kill_after, "anew": anew, "when": when}
    return Step("replay_span", arguments, after)


# --- servers


def away(server: Literal["kafka", "store"] = "kafka", *, seconds: float, after: float = 0.0) -> Step:
    """Make the brokers, or the sink's store, unreachable for a while."""
    return Step("away", {"server": server, "seconds": seconds}, after)


def obstacle(seconds: float, *, after: float = 0.0) -> Step:
    """Have HDFS refuse renames into the directory of the events for a while."""
    return Step("obstacle", {"seconds": seconds}, after)


def vanish(what: Literal["uploads", "directory", "staged", "staging"], *, after: float = 0.0) -> Step:
    """Remove undelivered files: uploads or their directory on HDFS, staged files or their directory on the host."""
    return Step("vanish", {"what": what}, after)


# --- sinks on Spark


def kill_driver(host: Host, *, after: float = 0.0) -> Step:
    """Kill the Spark driver of an agent, which starts another one."""
    return Step("kill_driver", {"host": host}, after)


def pause_driver(host: Host, *, seconds: float, after: float = 0.0) -> Step:
    """Let the Spark driver of an agent sleep; its executors continue."""
    return Step("pause_driver", {"host": host, "seconds": seconds}, after)


def kill_executor(host: Host, *, after: float = 0.0) -> Step:
    """Kill the executor that gets the next task."""
    return Step("kill_executor", {"host": host}, after)


def pause_executor(host: Host, *, seconds: float, after: float = 0.0) -> Step:
    """Let the executor that gets the next task sleep, until its driver has given it up."""
    return Step("pause_executor", {"host": host, "seconds": seconds}, after)


def context(host: Host, *, after: float = 0.0) -> Step:
    """Have the cluster manager end the Spark application."""
    return Step("context", {"host": host}, after)


def switch(host: Host, *, after: float = 0.0) -> Step:
    """Kill the agent and start it with the other runner, threads or Spark."""
    return Step("switch", {"host": host}, after)


# --- files that `taildir` reads


def write(lines: int, *, after: float = 0.0) -> Step:
    """Append lines to the log."""
    return Step("write", {"lines": lines}, after)


def rotate(*, matching: bool, after: float = 0.0) -> Step:
    """Rename the log, to a name of the numbered pattern or to one that no pattern matches."""
    return Step("rotate", {"matching": matching}, after)


def compress(*, after: float = 0.0) -> Step:
    """Compress all rotated files."""
    return Step("compress", {}, after)


def copytruncate(*, after: float = 0.0) -> Step:
    """Copy the log and truncate it."""
    return Step("copytruncate", {}, after)


def delete(*, after: float = 0.0) -> Step:
    """Delete the oldest rotated file."""
    return Step("delete", {}, after)


def remove(*, after: float = 0.0) -> Step:
    """Delete the log itself."""
    return Step("remove", {}, after)


def churn(times: int, *, life: float, after: float = 0.0) -> Step:
    """Write and rotate so many times, each log living `life` seconds, with one backup."""
    return Step("churn", {"times": times, "life": life}, after)


def flood(*, after: float = 0.0) -> Step:
    """Create and delete more files than the kernel's inotify queue holds."""
    return Step("flood", {}, after)


def kill_opener(*, after: float = 0.0) -> Step:
    """Kill the process that opens files for the agent."""
    return Step("kill_opener", {}, after)


def damage(how: Literal["flip", "torn", "short", "empty"], *, where: float, after: float = 0.0) -> Step:
    """Damage the journal of positions while no agent runs, at that share of its lines."""
    return Step("damage", {"how": how, "where": where}, after)


# --- a channel with disk overflow


def outage(seconds: float, *, after: float = 0.0) -> Step:
    """Make the brokers unreachable, and fail if sources stop for it."""
    return Step("outage", {"seconds": seconds}, after)


def flap(times: int, *, away: float, there: float, after: float = 0.0) -> Step:
    """Make the brokers unreachable so many times, and reachable for `there` seconds in between."""
    return Step("flap", {"times": times, "away": away, "there": there}, after)


def full(seconds: float, *, after: float = 0.0) -> Step:
    """Leave the disk of the overflow without room for a while."""
    return Step("full", {"seconds": seconds}, after)


def caught_amid(call: str, *, how: Sleep, after: float = 0.0) -> Step:
    """Pause or kill the agent at its next call of that name, during short outages of the brokers."""
    return Step("caught_amid", {"call": call, "how": how}, after)
