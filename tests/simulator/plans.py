"""Plans: what a seed has happen to agents in a simulation."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.simulator.faults import Fault

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
"""What an operator changes so that all events can be delivered."""
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
"""What happens, by how often."""
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
"""What goes wrong most easily when it follows closely upon one another."""
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
"""What happens while an agent that was caught sleeps, or is gone, and its session is over."""
LENGTHS = (0, 1, 1, 1, 1, 2, 2, 2, 3, 3, 5, 8)
"""How many steps a plan has besides its beginning and its theme: most of what goes wrong takes few."""
LOCAL = {"swap", "drain", "abandon", "retention", "truncate", "away", "exhaust"}
"""What does not happen to agents on Spark."""
RESET, NEW_IDS = "epoch=3&topic=TOPIC&ids=2\0", "epoch=3&topic=TOPIC&ids=3\0"
"""Metadata of a group that was reset, and of one that was reset with `--new-ids`. `TOPIC` is the topic's id."""
OLD_METADATA = ("", NEW_IDS, RESET, "epoch=", "epoch=x&topic", '{"a": 1}', "%%&&==;\u2028", "x" * 4000)
"""With offsets that were committed before the first agent starts: by Flume, by an agent, by another program."""
SINKS |= {f"spark-{name}": text + "a.runner = spark\na.spark.triggerInterval = 2\n" for name, text in SINKS.items()}
"""Those on Spark: one driver for each agent."""


class Step(NamedTuple):
    """One thing that happens, so many seconds after the one before."""

    after: float
    what: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return " ".join([self.what, *map(str, self.arguments)])


@dataclass
class Plan:
    """What a run does, but for what goes wrong by chance."""

    seed: int
    sink: str
    steps: list[Step]
    faults: list[Fault] | None = None
    """Those that come about; None: by chance."""
    share: float = 0.01

    def run(self, *, verbose: bool = False) -> Any:
        """Not yet begun."""
        if self.sink.startswith("spark-"):
            from tests.simulator.spark_stories import SparkRun

            return SparkRun(self, verbose=verbose)
        from tests.simulator.stories import Run

        return Run(self, verbose=verbose)


def plan_of(seed: int, sinks: tuple[str, ...] = tuple(SINKS), also: tuple[str, ...] = ()) -> Plan:
    """The one of that seed; with a step of each of the kinds in `also`."""
    chance = random.Random(seed)
    sink = chance.choice(sinks)
    spark = sink.startswith("spark-")
    steps = []
    if chance.random() < 0.3:
        steps.append(Step(0, "topic", (chance.choice([1, 3, 4]),)))
    if not spark and chance.random() < 0.15:
        steps.append(Step(0, "inherit", (OLD_METADATA.index(chance.choice(OLD_METADATA)), chance.randint(0, 3))))
    if chance.random() < 0.1:
        steps.append(Step(0, "root", ("h2",)))
    if not spark and chance.random() < 0.2:
        steps.append(Step(0, "in-flight", (4,)))
    steps += [Step(0, "start", ("h1",)), Step(2, "put", (chance.randint(1, 6), 0))]
    if chance.random() < 0.4:
        steps.append(Step(chance.choice([0, 3, 8]), "start", ("h2",)))
    if not spark and chance.random() < 0.1:
        steps.append(Step(chance.choice([0, 3, 8]), "start", ("h3",)))
    kinds = KINDS
    if spark:
        from tests.simulator import spark_stories

        kinds = {what: often for what, often in KINDS.items() if what not in LOCAL} | spark_stories.KINDS
    whats = [*chance.choices(list(kinds), list(kinds.values()), k=chance.choice(LENGTHS)), *also]
    if also:
        chance.shuffle(whats)
    steps += [step_of(what, chance) for what in whats]
    if chance.random() < (0.5 if len(whats) < 3 else 0.1):
        place = chance.randint(2, len(steps))
        steps[place:place] = [
            step_of(what, chance)._replace(after=chance.choice([0.0, 0.5, 2.0])) for what in chance.choice(THEMES)
        ]
    return Plan(seed, sink, steps, share=chance.choice([0.002, 0.01, 0.03]))


def step_of(what: str, chance: random.Random) -> Step:
    host = chance.choice(["h1", "h2"])
    after = chance.choice([0.0, 0.5, 2.0, 6.0, 20.0])
    arguments: tuple[Any, ...] = {
        "put": (chance.randint(1, 6), 0),
        "bad": (chance.randint(1, 3), 1),
        "pause": (host, chance.choice([5.0, 30.0, 80.0])),
        "exhaust": (host, chance.choice([5.0, 30.0, 80.0])),
        "swap": (host, chance.choice([0.0, 0.05, 0.3, 1.5, 5.0])),
        "drain": (host, chance.choice(["runs", "dies", "stops"]), chance.randint(0, 4)),
        "reset": (chance.choice(["earliest", "same", "middle"]),),
        "abandon": (chance.choice(["expire", "delete"]), chance.choice([0, 0, 2]), chance.random() < 0.3),
        "foreign": (chance.randint(0, 1), chance.choice([-2, 0, 2])),
        "recreate": (chance.choice([0, 1]), chance.randint(0, 8)),
        "retention": (
            chance.randint(0, 1),
            chance.choice([0, 1, 2, 3]),
            chance.choice(["", "stopped", "asleep", "slow"]),
        ),
        "truncate": (chance.randint(0, 1), chance.choice([1, 2, 4])),
        "clock": (chance.choice([-18_000.0, -3600.0, 3600.0, 18_000.0]),),
        "obstacle": (chance.choice([4.0, 25.0]),),
        "away": (chance.choice(["kafka", "kafka", "store"]), chance.choice([20.0, 60.0, 120.0])),
        "root": (host,),
        "replay-span": (
            chance.choice([0, 0, 5, 60]),
            chance.choice([None, None, 1.0, 3.0, 8.0]),
            chance.random() < 0.2,
            chance.choice(["now", "now", "late"]),
        ),
        "partitions": (chance.choice([3, 3, 5]),),
        "caught": (host, chance.randint(0, 3), chance.choice(["asleep", "asleep", "gone"]), chance.choice(MEANWHILE)),
        "set-back": (chance.random() < 0.5,),
        "vanish": (chance.choice(["uploads", "uploads", "directory", "staged", "staging"]),),
        "limit": (
            chance.choice(["channel", "sink"]),
            chance.choice([0.0, 0.01, 0.5, 5.0]),
            chance.choice([3.0, 60.0]),
        ),
        "stream": (chance.randint(4, 10), chance.choice([0.2, 0.7, 2.0])),
    }.get(what, (host,))
    if what == "backup":
        arguments = ()
    if what.startswith("pause-"):
        arguments = (host, chance.choice([5.0, 30.0, 80.0]))
    return Step(after, "put" if what == "bad" else what, arguments)
