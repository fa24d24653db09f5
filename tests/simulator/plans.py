"""Plans: what a seed has happen to agents in a simulation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.simulator import steps
from tests.simulator.faults import Fault
from tests.simulator.steps import Step

TOPIC, OUT, GROUP = "t", "out", "g"
CHANNEL = f"""
a.channels = c
a.sinks = k
a.channels.c.type = kafka
a.channels.c.kafka.bootstrap.servers = sim:9092
a.channels.c.kafka.topic = {TOPIC}
a.channels.c.kafka.consumer.group.id = {GROUP}
a.channels.c.partitions = 2
a.channels.c.replication = 1
a.sinks.k.channel = c
a.sinks.k.errors.tolerance = all
"""
SINKS = {
    "hdfs": """
a.sinks.k.type = hdfs
a.sinks.k.hdfs.path = /data/%{place}
a.sinks.k.hdfs.webhdfs = nn:9870
a.sinks.k.hdfs.fileType = DataStream
a.sinks.k.hdfs.rollInterval = 5
a.sinks.k.hdfs.callTimeout = 10000
""",
    "kafka": f"""
a.sinks.k.type = kafka
a.sinks.k.kafka.bootstrap.servers = sim:9092
a.sinks.k.kafka.topic = {OUT}
a.sinks.k.partitionIdHeader = to
a.sinks.k.flushInterval = 2000
""",
    "solr": """
a.sinks.k.type = solr
a.sinks.k.url = http://solr:8983/solr/events
a.sinks.k.bodyField = body_s
a.sinks.k.field.number_i = %{number}
""",
    "hbase": """
a.sinks.k.type = hbase
a.sinks.k.thrift = hbase:9090
a.sinks.k.table = events
a.sinks.k.columnFamily = f
a.sinks.k.rowKey = %{row}-%[id]
a.sinks.k.timeout = 10000
""",
}
MENDED = {"hdfs": ("%{place}", "%{to}"), "kafka": ("a.sinks.k.partitionIdHeader = to\n", "")}
"""Replacement in the configuration that makes all events deliverable."""
SIMPLE = ("solr", "hbase")
"""Sinks without a record of their own: they know what the group's offsets say."""
KINDS = {
    "put": 8,
    "bad": 3,
    "kill": 2,
    "pause": 3,
    "stop": 1,
    "start": 4,
    "swap": 2,
    "drain": 2,
    "reset": 2,
    "delete-group": 1,
    "abandon": 2,
    "recreate": 2,
    "retention": 2,
    "truncate": 0,
    "foreign": 1,
    "replay": 2,
    "replay-span": 2,
    "obstacle": 2,
    "away": 1,
    "clock": 1,
    "root": 2,
    "partitions": 1,
    "caught": 3,
    "mend": 1,
    "stream": 2,
    "backup": 1,
    "set-back": 1,
    "vanish": 2,
    "limit": 2,
    "exhaust": 2,
}
"""Weights of the kinds of steps."""
THEMES = (
    ("bad", "kill", "start"),
    ("bad", "delete-group", "kill"),
    ("put", "pause", "reset"),
    ("bad", "pause", "reset", "start"),
    ("put", "pause", "root", "put"),
    ("root", "pause", "root", "put"),
    ("reset", "put", "delete-group", "reset"),
    ("bad", "reset", "put", "reset"),
    ("pause", "recreate", "put"),
    ("bad", "replay", "kill"),
)
"""Sequences of steps that are most dangerous in quick succession."""
CALLS = {
    "hdfs": ("kafka.commit", "hdfs.rename", "hdfs.upload", "hdfs.list"),
    "kafka": (
        "kafka.commit",
        "kafka.commit_transaction",
        "kafka.send_offsets_to_transaction",
        "kafka.init_transactions",
    ),
    "solr": ("kafka.commit", "solr.update"),
    "hbase": ("kafka.commit", "hbase.put"),
}
"""At which calls agents are caught: those around a commit, by sink."""
MEANWHILE = (
    "start", "start", "reset", "reset", "root", "delete-group", "foreign", "recreate", "mend", "replay", "vanish",
)  # fmt: skip
"""Kinds of steps that happen after a caught agent's session has timed out."""
LENGTHS = (0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 5, 8)
"""Numbers of steps besides beginning and theme; most bugs take few."""
LOCAL = {"swap", "drain", "abandon", "retention", "truncate", "away", "exhaust"}
"""Kinds of steps without use for sinks on Spark."""
RESET, NEW_IDS = "epoch=3&topic=TOPIC&ids=2\0", "epoch=3&topic=TOPIC&ids=3\0"
"""Metadata of a group that was reset, and of one that was reset with `--new-ids`. `TOPIC` is the topic's id."""
OLD_METADATA = ("", NEW_IDS, RESET, "epoch=", "epoch=x&topic", '{"a": 1}', "%%&&==;\u2028", "x" * 4000)
"""With offsets that were committed before the first agent starts: by Flume, by an agent, by another program."""
SINKS |= {f"spark-{name}": text + "a.runner = spark\na.spark.triggerInterval = 2\n" for name, text in SINKS.items()}
"""Configurations of sinks on Spark, with one driver for each agent."""


@dataclass
class Plan:
    """Steps of a run, and its faults unless they are random."""

    seed: int
    sink: str
    steps: list[Step]
    faults: list[Fault] | None = None
    """Faults of the run; None: random ones."""
    share: float = 0.01

    def run(self, *, verbose: bool = False) -> Any:
        """Not yet begun."""
        if self.sink.startswith("spark-"):
            from tests.simulator.spark_stories import SparkRun

            return SparkRun(self, verbose=verbose)
        from tests.simulator.stories import Run

        return Run(self, verbose=verbose)


def plan_of(seed: int, sinks: tuple[str, ...] = tuple(SINKS), also: tuple[str, ...] = ()) -> Plan:
    """Return the plan of a seed, with a step of each of the kinds in `also`."""
    chance = random.Random(seed)
    sink = chance.choice(sinks)
    spark = sink.startswith("spark-")
    plan = []
    if chance.random() < 0.3:
        plan.append(steps.topic(chance.choice([1, 3, 4])))
    if not spark and chance.random() < 0.15:
        plan.append(steps.inherit(chance.choice(OLD_METADATA), offset=chance.randint(0, 3)))
    if chance.random() < 0.1:
        plan.append(steps.root("h2"))
    if not spark and chance.random() < 0.2:
        plan.append(steps.in_flight(4))
    plan += [steps.start("h1"), steps.put(good=chance.randint(1, 6), after=2.0)]
    if chance.random() < 0.4:
        plan.append(steps.start("h2", after=chance.choice([0.0, 3.0, 8.0])))
    if not spark and chance.random() < 0.1:
        plan.append(steps.start("h3", after=chance.choice([0.0, 3.0, 8.0])))
    kinds = KINDS
    if spark:
        from tests.simulator import spark_stories

        kinds = {kind: often for kind, often in KINDS.items() if kind not in LOCAL} | spark_stories.KINDS
    chosen = [*chance.choices(list(kinds), list(kinds.values()), k=chance.choice(LENGTHS)), *also]
    if also:
        chance.shuffle(chosen)
    plan += [step_of(kind, sink, chance) for kind in chosen]
    if chance.random() < (0.5 if len(chosen) < 3 else 0.1):
        index = chance.randint(2, len(plan))
        plan[index:index] = [
            step_of(kind, sink, chance)._replace(after=chance.choice([0.0, 0.5, 2.0]))
            for kind in chance.choice(THEMES)
        ]
    return Plan(seed, sink, plan, share=chance.choice([0.002, 0.01, 0.03]))


def step_of(kind: str, sink: str, chance: random.Random) -> Step:
    """Return a step of that kind, a name in `KINDS`, with drawn arguments.

    All kinds draw theirs, so that a seed's plan does not depend on how a kind draws.
    """
    host: steps.Host = chance.choice(["h1", "h2"])
    after = chance.choice([0.0, 0.5, 2.0, 6.0, 20.0])
    calls = CALLS[sink.removeprefix("spark-")]
    drawn = {
        "put": steps.put(good=chance.randint(1, 6)),
        "bad": steps.put(bad=chance.randint(1, 3)),
        "pause": steps.pause(host, seconds=chance.choice([5.0, 30.0, 80.0])),
        "exhaust": steps.exhaust(host, seconds=chance.choice([5.0, 30.0, 80.0])),
        "swap": steps.swap(host, seconds=chance.choice([0.0, 0.05, 0.3, 1.5, 5.0])),
        "drain": steps.drain(host, other=chance.choice(["runs", "dies", "stops"]), events=chance.randint(0, 4)),
        "reset": steps.reset(chance.choice(["earliest", "same", "middle"])),
        "abandon": steps.abandon(
            chance.choice(["expire", "delete"]), left=chance.choice([0, 0, 2]), overtaken=chance.random() < 0.3
        ),
        "foreign": steps.foreign(chance.randint(0, 1), ahead=chance.choice([-2, 0, 2])),
        "recreate": _recreate(chance),
        "retention": steps.retention(
            chance.randint(0, 1),
            left=chance.choice([0, 1, 2, 3]),
            readers=chance.choice(["", "stopped", "asleep", "slow"]),
        ),
        "truncate": steps.truncate(chance.randint(0, 1), lost=chance.choice([1, 2, 4])),
        "clock": steps.clock(chance.choice([-18_000.0, -3600.0, 3600.0, 18_000.0])),
        "obstacle": steps.obstacle(chance.choice([4.0, 25.0])),
        "away": steps.away(chance.choice(["kafka", "kafka", "store"]), seconds=chance.choice([20.0, 60.0, 120.0])),
        "root": steps.root(host),
        "replay-span": steps.replay_span(
            chance.choice([0, 0, 5, 60]),
            kill_after=chance.choice([None, None, 1.0, 3.0, 8.0]),
            anew=chance.random() < 0.2,
            when=chance.choice(["now", "now", "late"]),
        ),
        "partitions": steps.partitions(chance.choice([3, 3, 5])),
        "caught": steps.caught(
            host,
            call=calls[chance.randint(0, 3) % len(calls)],
            how=chance.choice(["asleep", "asleep", "gone"]),
            meanwhile=chance.choice(MEANWHILE),
        ),
        "set-back": steps.set_back(cold=chance.random() < 0.5),
        "vanish": steps.vanish(chance.choice(["uploads", "uploads", "directory", "staged", "staging"])),
        "limit": steps.limit(
            chance.choice(["channel", "sink"]),
            delay=chance.choice([0.0, 0.01, 0.5, 5.0]),
            seconds=chance.choice([3.0, 60.0]),
        ),
        "stream": steps.stream(chance.randint(4, 10), every=chance.choice([0.2, 0.7, 2.0])),
        "start": steps.start(host),
        "stop": steps.stop(host),
        "kill": steps.kill(host),
        "delete-group": steps.delete_group(),
        "replay": steps.replay(),
        "mend": steps.mend(),
        "backup": steps.backup(),
        "kill-driver": steps.kill_driver(host),
        "kill-executor": steps.kill_executor(host),
        "context": steps.context(host),
        "switch": steps.switch(host),
    }
    if kind == "pause-driver":
        drawn[kind] = steps.pause_driver(host, seconds=chance.choice([5.0, 30.0, 80.0]))
    elif kind == "pause-executor":
        drawn[kind] = steps.pause_executor(host, seconds=chance.choice([5.0, 30.0, 80.0]))
    return drawn[kind]._replace(after=after)


def _recreate(chance: random.Random) -> Step:
    chance.choice([0, 1])  # a draw without use, for the sake of known seeds
    return steps.recreate(events=chance.randint(0, 8))
