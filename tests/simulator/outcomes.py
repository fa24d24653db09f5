"""Outcome of a plan: events in topics and stores, and the group's offsets."""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from flafka.plugins.kafka.offsets import OffsetMetadata
from tests.simulator.faults import Chances
from tests.simulator.kafka import Brokers
from tests.simulator.plans import CHANNEL, GROUP, MENDED, OUT, SINKS, TOPIC, Plan
from tests.simulator.processes import Process
from tests.simulator.program import AgentProcess, configured, in_process
from tests.simulator.webhdfs import Hdfs
from tests.simulator.world import World

PROCESSES = frozenset(
    (
        "h1",
        "h2",
        "h3",
        "replay",
        "again",
        *(f"{what}-{number}" for what in ("driver", "executor") for number in range(1, 200)),
    )
)
"""Processes with random faults."""
LOG = f"{TOPIC}.positions"
"""Topic with the commit log of a sink `kafka`."""
OF_REPLAY = ".replay."
"""In the names of their groups, and of what these are part of."""

DELICATE = dict.fromkeys(
    (
        "hdfs.rename", "hdfs.upload", "hdfs.delete", "kafka.produce", "kafka.flush", "kafka.commit",
        "kafka.committed",
        "kafka.commit_transaction", "kafka.send_offsets_to_transaction", "kafka.init_transactions", "solr.update",
    ),
    6.0,
)  # fmt: skip
"""Calls that change something, or decide where to go on: they go wrong so many times more often than others."""


@dataclass
class Feed:
    """Events on their way in."""

    waiting: deque[list[Any]] = field(default_factory=deque)
    sending: dict[Process, Counter[bytes]] = field(default_factory=lambda: defaultdict(Counter))
    """Events that each agent has taken from the feed and not stored yet."""
    stored: list[bytes] = field(default_factory=list)
    changed: Any = None
    in_flight: int = 1


class Failure(AssertionError):
    """Error of a run: an event was lost, duplicated or not reported."""


class Outcomes:
    """One plan carried out: what there is, and what has become of it."""

    brokers: Brokers
    hdfs: Hdfs
    solr: Any
    hbase: Any
    feed: Feed

    def __init__(self, plan: Plan, *, verbose: bool = False) -> None:
        self.plan = plan
        self.sink = plan.sink.removeprefix("spark-")
        chances = Chances(plan.share, DELICATE, processes=PROCESSES)
        self.world = World(plan.seed, chances=chances, given=plan.faults, verbose=verbose)
        self.agents: dict[str, AgentProcess] = {}
        self.number = 0
        self.bodies: dict[bytes, bool] = {}
        """Bodies of all events, and True if the sink can deliver the event."""
        self.resets: list[tuple[str, dict[int, int]]] = []
        """Incarnation of the topic, and position by partition."""
        self.logs: dict[str, dict[bytes, dict[tuple[int, int], None]]] = {}
        """By topic id: the places (partition, offset) of each body that was in it."""
        self.replays: dict[str, dict[bytes, dict[tuple[int, int], None]]] = {}
        """Places, as in `logs`, of records that replay a dead letter: a reset redelivers them, too."""
        self.removed: set[tuple[str, int, int]] = set()
        """Topic id, partition and offset of what retention took, delivered or not."""
        self.unclean: set[tuple[str, int, int, bytes]] = set()
        """Topic id, partition, offset and body of records that a new leader lacked; their offsets may be reused."""
        self.backup: Any = None
        """Latest backup of the brokers."""
        self.skipped: set[tuple[str, int, int]] = set()
        """Topic id, partition and offset of records whose loss an operator has accepted."""
        self.watching = 0
        """Drains that are under way."""
        self.foreign: set[bytes] = set()
        """Events that another program says it has delivered."""
        self.roots = {"h1": "data", "h2": "data", "h3": "data"}
        self.moved = 0
        """Number of changes of `hdfs.path`: each moves the commit log, and thereby the epoch."""
        self.lost_metadata = self.inherited = self.forgotten = False
        self.was_reset_before = False
        """True if the inherited offsets came from a reset."""
        self.mended = self.was_mended = False
        """True while, and once, the configuration accepts all events."""
        self.uploads_removed = False
        """True once uploaded files that were not renamed yet were removed."""
        self.early_replays: dict[str, bytes] = {}
        """By name of dead letter, the bodies of events that were replayed before the commit of their records."""
        self.unlogged_replays: dict[str, bytes] = {}
        """Like `early_replays`, for records that the group had committed and the sink's commit log had not."""
        self.replayed: set[str] = set()
        """Names of dead letters whose replay has succeeded."""
        self.epochs: dict[str, dict[int, int]] = {}
        """After the latest reset, by topic id and partition."""
        self.dead_letters: Counter[bytes] = Counter()
        """In the end, but for those that were replayed."""
        self.refused: Counter[bytes] = Counter()
        """Dead letters, in the end, of events that never were in the channel's topic."""
        self.delivered: Counter[bytes] = Counter()
        """In the end."""
        self.spans: list[Any] = []
        """Spans that were replayed."""
        self.replaying = 0
        """Replays that are under way."""
        self._later: list[tuple[Any, ...]] = []
        self.groups: set[tuple[str, int]] = set()
        """Groups of replays, and their epochs."""
        self.deleted: set[bytes] = set()
        """Events that were deleted from the store before their replay."""
        self.replay_dead_letters: Counter[bytes] = Counter()
        """Dead letters of replays."""
        self.replay_deliveries: Counter[bytes] = Counter()
        """Deliveries by replays, where a store distinguishes them."""
        self.redelivered: Counter[bytes] = Counter()
        """Dead letters of replays that were replayed to the agents' sink."""
        self.accepted: dict[int, int] = {}
        """Offset by partition up to which an operator has accepted a loss."""
        self.advised = 0
        """Lines of the story that were searched for advice."""

    def _excused(self, topic: str, body: bytes, location: tuple[int, int]) -> bool:
        """Return True if that record need not be delivered: it is lost, or an operator gave it up."""
        return (topic, *location) in self.removed | self.skipped or self._is_unclean(topic, body, location)

    @property
    def _cut(self) -> set[tuple[str, int, int]]:
        """Topic id, partition and offset of all that leaders lacked: of a replay, others there count as delivered."""
        return {(topic, partition, offset) for topic, partition, offset, _ in self.unclean}

    def _is_unclean(self, topic: str, body: bytes, location: tuple[int, int]) -> bool:
        return (topic, *location, body) in self.unclean

    def text(self, host: str) -> str:
        """Return the configuration of the sink on that host."""
        return SINKS[self.plan.sink]

    def spec(self, host: str) -> Any:
        text = self.text(host)
        if self.mended:
            text = text.replace(*MENDED[self.sink])
        return configured(CHANNEL + text.replace("/data/", f"/{self.roots[host]}/"))

    # --- the channel

    def _topic_id(self) -> str:
        return str(self.brokers.topics[TOPIC].id)

    def _read_log(self, *, hidden: bool = False) -> None:
        """Note the present records of the topic, with `hidden` also those behind open transactions."""
        from flafka.channels.kafka.records import REPLAYED, decode_batch, format_of
        from flafka.plugins import Record

        if TOPIC not in self.brokers.topics:
            return
        log = self.logs.setdefault(self._topic_id(), defaultdict(dict))
        replays = self.replays.setdefault(self._topic_id(), defaultdict(dict))
        for partition in range(self.brokers.count(TOPIC)):
            for entry in self.brokers.records(TOPIC, partition, read_committed=not hidden):
                if entry.transaction is not None and entry.transaction.state != "committed":
                    continue
                record = Record(entry.offset, 0, entry.key, entry.value, entry.headers or ())
                format = format_of(record) or b""
                into = replays if format.endswith(REPLAYED) else log
                for event in decode_batch(format.removesuffix(REPLAYED), entry.value):
                    into[event.body][partition, entry.offset] = None

    def _watermarks(self, partition: int) -> tuple[int, int]:
        log = self.brokers.partition(TOPIC, partition)
        return (log.low, log.high) if log is not None else (0, 0)

    def _position(self) -> str:
        parts = range(self.brokers.count(TOPIC))
        return ", ".join(
            f"{p}: {self.brokers.committed(GROUP, TOPIC, p)} of {self.brokers.end_offset(TOPIC, p)}" for p in parts
        )

    def _is_committed(self, body: bytes, end: Callable[[int], int]) -> bool:
        """Return True if all records that brought this event into the topic end before `end(partition)`."""
        places = self.logs.get(self._topic_id(), {}).get(body, ())
        return all(offset < end(partition) for partition, offset in places)

    def _group_end(self, partition: int) -> int:
        """Return the group's committed offset in a partition of the present topic; 0 without one."""
        committed = self.brokers.committed(GROUP, TOPIC, partition)
        known = committed is not None and OffsetMetadata.parse(committed.metadata).topic_id in ("", self._topic_id())
        return committed.offset if committed is not None and known else 0

    def _log_end(self, partition: int) -> int:
        """Return the end of what the commit log of the sink, in HDFS or in Kafka, has of a partition."""
        ends = {0: 0}
        for path, data in self.hdfs.files("/").items():
            parts = path.partition("/.flafka/chain/")[2].split("/")
            if len(parts) == 6 and parts[-1].isdecimal():
                _, topic, group, epoch, number, _ = parts
                if (unquote(topic.replace("=", "%")), group, int(number)) == (self._topic_id(), GROUP, partition):
                    ends[int(epoch)] = max(ends.get(int(epoch), 0), json.loads(data)["end"])
        for entry in self.brokers.records(LOG, 0) if LOG in self.brokers.topics else ():
            if entry.key == f"{GROUP}/{self._topic_id()}/{partition}".encode():
                epoch, end, _ = json.loads(entry.value)
                ends[epoch] = max(ends.get(epoch, 0), end)
        return ends[max(ends)]

    def _epochs(self) -> dict[int, int]:
        committed = {p: self.brokers.committed(GROUP, TOPIC, p) for p in range(self.brokers.count(TOPIC))}
        return {
            p: OffsetMetadata.parse(entry.metadata).generation.epoch
            for p, entry in committed.items()
            if entry is not None
        }

    # --- behind it

    def _hidden(self) -> bool:
        """Return True if the open transaction of a killed agent hides later records, until it times out."""
        return self.brokers.end_offset(OUT, 0, read_committed=True) < self.brokers.end_offset(OUT, 0)

    def _dead_letters(self) -> Counter[bytes]:
        from flafka.agent.runner.deadletters.reading import read_dead_letters
        from flafka.agent.runner.deadletters.store import dead_letter_store

        def look() -> Counter[bytes]:
            spec = self.spec("h1")
            channel = spec.channels[0]
            store = dead_letter_store(spec.name, channel, channel.make(), spec.options)
            counts: Counter[bytes] = Counter()
            self.replay_dead_letters, self.redelivered, self.refused = Counter(), Counter(), Counter()
            for kept in read_dead_letters(store):
                if self._of_replay(kept):
                    self.replay_dead_letters[kept.event.body] += 1
                    self.redelivered[kept.event.body] += kept.replayed
                elif not kept.replayed:
                    (counts if kept.id is not None else self.refused)[kept.event.body] += 1
                    if kept.name in self.replayed:
                        raise Failure(f"{kept.event.body!r} was replayed, and is not marked as replayed")
            return counts

        if (away := self.brokers.away_until - self.world.now) > 0:
            self.world.sleep(away)
        counts: Counter[bytes] = in_process(self.world, "operator", look)
        return counts

    def _of_replay(self, kept: Any) -> bool:
        """Return True if a replay of a span has rejected the event: the name of a dead letter has the group."""
        from flafka.agent.runner.deadletters.store import dead_letter_name

        # A sink whose path was changed continues in a later epoch than was planned.
        commits = ((group, text) for group, text in self.brokers.written if OF_REPLAY in group)
        later = {(group, OffsetMetadata.parse(text).generation.epoch) for group, text in commits}
        return any(dead_letter_name(kept.component, *key, kept.id, "") == kept.name for key in self.groups | later)

    def _outcome(self) -> Counter[bytes]:
        """Return the number of deliveries by body, without deliveries by replays."""
        counts = self._stored()
        for span in self.spans:
            counts.update(span.missing - counts.keys())
        return counts

    def _stored(self) -> Counter[bytes]:
        counts: Counter[bytes] = Counter()
        replayed: Counter[bytes] = Counter()
        if self.sink == "hdfs":
            for path, data in self.hdfs.files("/").items():
                if "/.flafka/" not in path:
                    (replayed if "-replay" in path else counts).update(data.split(b"\n")[:-1])
        elif self.sink == "kafka":
            for entry in self.brokers.records(OUT, 0):
                of_replay = entry.transaction is not None and OF_REPLAY in entry.transaction.name
                (replayed if of_replay else counts)[entry.value] += 1
        elif self.sink == "hbase":
            counts.update(row[b"f:pCol"] for row in self.hbase.tables[b"events"].rows().values())
        else:
            counts.update(self._documents())
        self.replay_deliveries = replayed
        return counts

    def _documents(self) -> list[bytes]:
        return [str(document["body_s"]).encode() for document in self.solr.collections["events"].values()]
