"""What came of a plan: where events are, and what the group's positions say."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

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
"""Those whose calls go wrong by chance."""
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
    """What each agent has taken from it and not yet stored."""
    stored: list[bytes] = field(default_factory=list)
    changed: Any = None
    in_flight: int = 1


class Failure(AssertionError):
    """Something was lost, came twice, or was not told."""


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
        """All that was ever put; whether it can be delivered."""
        self.resets: list[tuple[str, dict[int, int]]] = []
        """Incarnation of the topic, and position by partition."""
        self.logs: dict[str, dict[bytes, dict[tuple[int, int], None]]] = {}
        """By topic id: the places (partition, offset) of each body that was in it."""
        self.replays: dict[str, dict[bytes, dict[tuple[int, int], None]]] = {}
        """The same of records that replay a dead letter: a reset to before them has them delivered again, too."""
        self.removed: set[tuple[str, int, int]] = set()
        """Topic id, partition and offset of what retention took, delivered or not."""
        self.unclean: set[tuple[str, int, int, bytes]] = set()
        """The same, with the body, of what a leader lacked that took over: another record may get the offset."""
        self.backup: Any = None
        """What brokers are set back to."""
        self.skipped: set[tuple[str, int, int]] = set()
        """The same of what the operator, who was told of it, has accepted to skip."""
        self.watching = 0
        """Drains that are under way."""
        self.foreign: set[bytes] = set()
        """Events that another program says it has delivered."""
        self.roots = {"h1": "data", "h2": "data", "h3": "data"}
        self.moved = 0
        """How often an operator has changed hdfs.path: each moves the commit log, and thereby the epoch."""
        self.lost_metadata = self.inherited = self.forgotten = False
        self.was_reset_before = False
        """Whether the positions that the group has inherited are those of a reset."""
        self.mended = self.was_mended = False
        """Whether all events can be delivered now, or could at some time."""
        self.replayed: set[str] = set()
        """Letters whose replay has ended well."""
        self.epochs: dict[str, dict[int, int]] = {}
        """After the latest reset, by topic id and partition."""
        self.letters: Counter[bytes] = Counter()
        """In the end, but for those that were replayed."""
        self.refused: Counter[bytes] = Counter()
        """Letters of events that the channel did not take, in the end: these were never in its topic."""
        self.delivered: Counter[bytes] = Counter()
        """In the end."""
        self.spans: list[Any] = []
        """What was replayed."""
        self.replaying = 0
        """Replays that are under way."""
        self._later: list[tuple[Any, ...]] = []
        self.groups: set[tuple[str, int]] = set()
        """Groups of replays, and their epochs."""
        self.deleted: set[bytes] = set()
        """What was deleted from the store before it was replayed."""
        self.again_letters: Counter[bytes] = Counter()
        """Of replays."""
        self.again_delivered: Counter[bytes] = Counter()
        """By replays, where that can be told."""
        self.redelivered: Counter[bytes] = Counter()
        """Letters of replays that were replayed to the agents' sink."""
        self.accepted: dict[int, int] = {}
        """By partition: up to where the operator, who was told of some, has accepted that records are lost."""
        self.advised = 0
        """Lines of the story that were searched for advice."""

    def _excused(self, topic: str, body: bytes, place: tuple[int, int]) -> bool:
        """Whether that record of a topic need not be delivered: it is lost, or an operator gave it up."""
        return (topic, *place) in self.removed | self.skipped or self._is_unclean(topic, body, place)

    @property
    def _cut(self) -> set[tuple[str, int, int]]:
        """Topic id, partition and offset of all that leaders lacked: of a replay, others there count as delivered."""
        return {(topic, partition, offset) for topic, partition, offset, _ in self.unclean}

    def _is_unclean(self, topic: str, body: bytes, place: tuple[int, int]) -> bool:
        return (topic, *place, body) in self.unclean

    def text(self, host: str) -> str:
        """What its configuration says of the sink."""
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
        """What the topic holds now: it may be gone later. And what open transactions hide, where that is `hidden`."""
        from flafka.channels.kafka.records import REPLAYED, format_of
        from flafka.plugins import Batch, Record

        if TOPIC not in self.brokers.topics:
            return
        log = self.logs.setdefault(self._topic_id(), defaultdict(dict))
        replays = self.replays.setdefault(self._topic_id(), defaultdict(dict))
        for partition in range(self.brokers.count(TOPIC)):
            for entry in self.brokers.records(TOPIC, partition, read_committed=not hidden):
                if entry.transaction is not None and entry.transaction.state != "committed":
                    continue
                record = Record(entry.offset, 0, entry.key, entry.value, entry.headers or ())
                into = replays if (format_of(record) or b"").endswith(REPLAYED) else log
                for body in Batch.from_ipc(entry.value).bodies.to_pylist():
                    into[body][partition, entry.offset] = None

    def _watermarks(self, partition: int) -> tuple[int, int]:
        found = self.brokers.partition(TOPIC, partition)
        return (found.low, found.high) if found is not None else (0, 0)

    def _position(self) -> str:
        parts = range(self.brokers.count(TOPIC))
        return ", ".join(
            f"{p}: {self.brokers.committed(GROUP, TOPIC, p)} of {self.brokers.end_offset(TOPIC, p)}" for p in parts
        )

    def _epochs(self) -> dict[int, int]:
        committed = {p: self.brokers.committed(GROUP, TOPIC, p) for p in range(self.brokers.count(TOPIC))}
        return {
            p: OffsetMetadata.parse(at.metadata).generation.epoch for p, at in committed.items() if at is not None
        }

    # --- behind it

    def _hidden(self) -> bool:
        """Whether a transaction that a killed agent left open hides those after it, until it times out."""
        return self.brokers.end_offset(OUT, 0, read_committed=True) < self.brokers.end_offset(OUT, 0)

    def _letters(self) -> Counter[bytes]:
        from flafka.agent.runner.deadletters.letters import dead_letters_of
        from flafka.agent.runner.deadletters.stored import read

        def look() -> Counter[bytes]:
            spec = self.spec("h1")
            channel = spec.channels[0]
            letters = dead_letters_of(spec.name, channel, channel.make(), spec.options)
            found: Counter[bytes] = Counter()
            self.again_letters, self.redelivered, self.refused = Counter(), Counter(), Counter()
            for kept in read(letters):
                if self._of_replay(kept):
                    self.again_letters[kept.event.body] += 1
                    self.redelivered[kept.event.body] += kept.replayed
                elif not kept.replayed:
                    (found if kept.id is not None else self.refused)[kept.event.body] += 1
                    if kept.letter in self.replayed:
                        raise Failure(f"{kept.event.body!r} was replayed, and nobody knows of it")
            return found

        if (away := self.brokers.away_until - self.world.now) > 0:
            self.world.sleep(away)
        found: Counter[bytes] = in_process(self.world, "operator", look)
        return found

    def _of_replay(self, kept: Any) -> bool:
        """Whether a replay of a span has rejected it: a letter's name says the group."""
        from flafka.agent.runner.deadletters.letters import letter_name

        # A sink whose path was changed goes on in a later epoch than was planned.
        said = ((group, text) for group, text in self.brokers.written if OF_REPLAY in group)
        later = {(group, OffsetMetadata.parse(text).generation.epoch) for group, text in said}
        return any(letter_name(kept.component, *one, kept.id, "") == kept.letter for one in self.groups | later)

    def _outcome(self) -> Counter[bytes]:
        """What was delivered, but for what replays have sent once more."""
        found = self._stored()
        for span in self.spans:
            found.update(span.missing - found.keys())
        return found

    def _stored(self) -> Counter[bytes]:
        found: Counter[bytes] = Counter()
        again: Counter[bytes] = Counter()
        if self.sink == "hdfs":
            for path, data in self.hdfs.files("/").items():
                if "/.flafka/" not in path:
                    (again if "-replay" in path else found).update(data.split(b"\n")[:-1])
        elif self.sink == "kafka":
            for entry in self.brokers.records(OUT, 0):
                of_replay = entry.transaction is not None and OF_REPLAY in entry.transaction.name
                (again if of_replay else found)[entry.value] += 1
        elif self.sink == "hbase":
            found.update(row[b"f:pCol"] for row in self.hbase.tables[b"events"].rows().values())
        else:
            found.update(self._documents())
        self.again_delivered = again
        return found

    def _documents(self) -> list[bytes]:
        return [str(document["body_s"]).encode() for document in self.solr.collections["events"].values()]
