"""Numbered events as real hosts send them: many hosts, all priorities, and texts of many programs and lengths.

Equal lines with a number compress and cache far better than these. All draws have a fixed seed, so that each run has
the same events but for their times, which end with the present. `REPEATED` has the equal lines, for comparison.
"""

from __future__ import annotations

import functools
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SEED = 20_261_129
HOSTS, TEXTS = 500, 8_000
"""Number of different hosts, and of different texts."""
PRIORITIES = 24 * 8
EVENTS_PER_SECOND = 10_000
"""Pace of the timestamps, which does not depend on the rate of a benchmark."""
SKEW_SECONDS = 2.0
"""Largest difference between the clocks of two hosts, so that timestamps of neighbours differ."""
ADDRESS = re.compile(rb"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b")
_TAG = re.compile(rb"^([^:\[ ]+)(?:\[(\d+)\])?: ")
RFC3164, RFC5424 = "RFC 3164", "RFC 5424"
_WORDS = (
    "account adapter archive backup balance basket billing cache catalog checkout cluster consumer container cursor "
    "customer delivery device export feature gateway handler index ingest invoice journal ledger listener manifest "
    "message metrics mirror mobile notifier offer order package partner payment pipeline policy portal price product "
    "profile proxy queue quota receipt record refund region registry release replica report request reservation "
    "resource retry route schedule search segment session shard shipping signal snapshot stock storage stream "
    "subscription supplier support survey table tenant ticket token tracker trade transfer update upload user vault "
    "vendor voucher wallet warehouse webhook worker workflow zone"
)
_USERS = "alice anna bruno carla chen dora emil fatima george hana igor jana kofi lena maria nils olga pavel"
_PATTERNS = (
    "sshd[{pid}]: Failed password for invalid user {user} from {ip} port {port} ssh2",
    "sshd[{pid}]: Accepted publickey for {user} from {ip} port {port} ssh2: ED25519 SHA256:{hex}{hex}",
    "sshd[{pid}]: pam_unix(sshd:session): session opened for user {user}(uid={small}) by (uid=0)",
    "sshd[{pid}]: Received disconnect from {ip} port {port}:11: disconnected by user",
    "CRON[{pid}]: ({user}) CMD (/usr/local/bin/{word}-{word} --since {small}h --output /var/spool/{word}/{hex})",
    "kernel: [{big}.{small}] eth{digit}: link becomes ready, {small}000 Mbps, full duplex, flow control rx/tx",
    "kernel: [{big}.{small}] EXT4-fs (sd{letter}{digit}): mounted filesystem {uuid} with ordered data mode",
    "kernel: [{big}.{small}] Out of memory: Killed process {pid} ({word}) total-vm:{big}kB, anon-rss:{big}kB",
    'nginx: {ip} - {user} "GET /api/v{digit}/{word}/{big}?page={small}&sort={word} HTTP/1.1" 200 {big} {ms}',
    'nginx: {ip} - - "POST /{word}/{word}/{uuid} HTTP/2.0" 503 {small} "https://{word}.example.com/" {ms}',
    "haproxy[{pid}]: {ip}:{port} frontend~ {word}/{word}-{small} {small}/0/{small}/{small}/{big} 200 {big} - - ----",
    "postgres[{pid}]: [{small}-1] {user}@{word} LOG:  duration: {ms} ms  execute S_{small}: SELECT {word}_id, "
    "{word}, {word} FROM {word} WHERE {word}_id = $1 AND state = $2 ORDER BY created_at DESC LIMIT {small}",
    "postgres[{pid}]: [{small}-1] LOG:  checkpoint complete: wrote {big} buffers ({small}.{digit}%); write={ms} s",
    "java[{pid}]: WARN  [{word}-pool-{small}] com.example.{word}.{word}Service - {word} {uuid} took {ms} ms, "
    "limit is {big} ms; attempt {digit} of 5 against {ip}:{port}",
    "java[{pid}]: ERROR [http-nio-{port}-exec-{small}] com.example.{word}.Controller - "
    "java.util.concurrent.TimeoutException: no answer of {word} within {big} ms (trace {hex}{hex})",
    "java[{pid}]: INFO  [kafka-{word}-{digit}] com.example.{word}.Listener - partition {word}-{small} offset {big} "
    'lag {big} key {uuid} {{"{word}":"{hex}","{word}":{small},"amount":{small}.{small},"user":"{user}"}}',
    "hadoop: INFO org.apache.hadoop.hdfs.StateChange: BLOCK* NameSystem.addStoredBlock: blockMap updated: {ip}:50010 "
    "is added to blk_{big}{big} size 67108864 of /user/{user}/{word}/part-{pid}",
    "hadoop: INFO org.apache.hadoop.hdfs.server.datanode.DataNode$PacketResponder: PacketResponder {digit} for block "
    "blk_{big}{big} terminating, received block of size 67108864 from /{ip}",
    "hadoop: WARN [LeaseRenewer:{user}@{word}:8020] org.apache.hadoop.hdfs.LeaseRenewer: Failed to renew lease for "
    "[DFSClient_NONMAPREDUCE_{big}_1] for {small} seconds.  Will retry shortly ... java.net.NoRouteToHostException: "
    "No Route to Host from {word}/{ip} to {word}:8020 failed on socket timeout exception; For more details see:  "
    "http://wiki.apache.org/hadoop/NoRouteToHost",
    "java[{pid}]: ERROR [http-nio-8443-exec-{small}] o.a.c.c.C.[.[.[/].[dispatcherServlet] - Servlet.service() for "
    "servlet [dispatcherServlet] in context with path [] threw exception [Request processing failed; nested "
    "exception is java.lang.IllegalStateException: {word} {big} is closed] with root cause   at "
    "com.example.{word}.{word}Service.find(Service.java:{small})   at java.lang.Thread.run(Thread.java:840)",
    'dockerd[{pid}]: time level=info msg="ignoring event" container={hex}{hex}{hex}{hex} module=libcontainerd '
    'namespace=moby topic=/tasks/delete type="*events.TaskDelete"',
    'kubelet[{pid}]: I{small} {pid} reconciler.go:{small}] "Volume attached" volumeName="{word}-{hex}" '
    'pod="{word}/{word}-{hex}-{small}" node="{word}-{small}"',
    "systemd[1]: {word}-{word}.service: Main process exited, code=exited, status={small}/FAILURE",
    "systemd[1]: Started {word}-{word}@{small}.service - {word} for {word} of {word}.",
    "dhclient[{pid}]: DHCPREQUEST for {ip} on ens{digit} to {ip} port 67 (xid=0x{hex})",
    "named[{pid}]: client @0x{hex} {ip}#{port} ({word}.{word}.example.net): query: {word}.example.net IN A +E(0)K",
    "postfix/smtp[{pid}]: {hex}: to=<{user}@{word}.example.org>, relay=mx{digit}.example.org[{ip}]:25, delay={ms}, "
    "delays=0.{small}/0/{ms}/{ms}, dsn=2.0.0, status=sent (250 2.0.0 Ok: queued as {hex})",
    'audit[{pid}]: USER_AUTH pid={pid} uid={small} auid={big} ses={small} msg=\'op=PAM:authentication acct="{user}" '
    'exe="/usr/sbin/sshd" hostname={ip} addr={ip} terminal=ssh res=failed\'',
)


@dataclass(frozen=True)
class Population:
    """Choices from which events are drawn, each of them evenly."""

    hosts: Sequence[bytes]
    priorities: Sequence[int]
    texts: Sequence[bytes]
    is_paced: bool
    """True if timestamps advance."""


@functools.cache
def varied() -> Population:
    """Return the population of `HOSTS` hosts, all priorities, and `TEXTS` different texts."""
    draw = random.Random(SEED)
    return Population(_host_names(draw), range(PRIORITIES), _texts(draw), is_paced=True)


REPEATED = Population(
    (b"web-1",),
    (134,),
    (b"sshd[4721]: Failed password for invalid user admin from 10.1.2.3 port 4022 ssh2",),
    is_paced=False,
)
"""Population of equal lines."""


class Events:
    """Events with the numbers 0 to `count` - 1.

    The body of an event is a text, a blank, one of the `fillings` in turn, and `id=` with nine digits of its number.
    All arrays have one element per event, in the order of numbers.
    """

    def __init__(self, count: int, fillings: Sequence[bytes] = (b"",), population: Population | None = None) -> None:
        self.population = population or varied()
        self.numbers = np.arange(count)
        self._fillings = fillings
        drawn_from = self.population
        self._host, self._priority, self._text = (
            # A generator of its own for each: more events begin with the same ones.
            np.random.default_rng((SEED, column)).integers(len(choices), size=count, dtype=np.int32)
            for column, choices in enumerate((drawn_from.hosts, drawn_from.priorities, drawn_from.texts))
        )
        times = np.full(count, time.time() * 1e6)
        if self.population.is_paced:
            times -= (count - self.numbers) * (1e6 / EVENTS_PER_SECOND)
            times -= self._host * (SKEW_SECONDS * 1e6 / len(self.population.hosts))
        self.microseconds = times.astype(np.int64)
        """Times since 1970 in UTC."""

    @property
    def hosts(self) -> pa.Array:
        """Host names."""
        return pa.array(self.population.hosts, pa.binary()).take(pa.array(self._host))

    @property
    def priorities(self) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        """Priorities of syslog: 8 · facility + severity."""
        return np.array(self.population.priorities, np.int32)[self._priority]

    def bodies(self, form: str = RFC3164, *, masked: bool = False) -> pa.Array:
        """Return the bodies that a parser leaves of lines in this form; with `masked`, without their addresses."""
        texts = self._texts(form)
        return self._joined(*self._body([ADDRESS.sub(b"***", text) for text in texts] if masked else texts))

    def lines(self, form: str = RFC3164) -> pa.Array:
        """Return lines of syslog without newlines, in the form `RFC3164` with local times, or `RFC5424` in UTC."""
        head: list[pa.Array | bytes] = [b"<", pa.array(self.priorities).cast(pa.string()).cast(pa.binary())]
        if form == RFC3164:
            head += [b">", self._formatted("%b %e %H:%M:%S", time.localtime)]
        else:
            digits = pc.utf8_lpad(pa.array(self.microseconds % 1_000_000).cast(pa.string()), 6, "0")
            head += [b">1 ", self._formatted("%Y-%m-%dT%H:%M:%S.", time.gmtime), digits.cast(pa.binary()), b"Z"]
        return self._joined(*head, b" ", self.hosts, b" ", *self._body(self._texts(form)))

    def write(self, path: Path) -> None:
        """Write a line for each event: host, milliseconds since 1970, and body, with tabs between them."""
        times = self.headers(RFC5424)["timestamp"].cast(pa.binary())
        lines = self._joined(self.hosts, b"\t", times, b"\t", self.bodies(), b"\n")
        path.write_bytes(b"".join(lines.to_pylist()))

    def headers(self, form: str = RFC3164) -> dict[str, pa.Array]:
        """Return the headers that a parser sets for lines in this form: host, priority and time."""
        times = self.microseconds // 1_000_000 * 1_000 if form == RFC3164 else self.microseconds // 1_000
        numbers = {"timestamp": times, "Facility": self.priorities >> 3, "Severity": self.priorities & 7}
        columns = {name: pa.array(values).cast(pa.string()) for name, values in numbers.items()}
        return {**columns, "host": self.hosts.cast(pa.string())}

    def _texts(self, form: str) -> Sequence[bytes]:
        """Return the texts behind the host: in RFC 5424, program and process ID are fields of their own."""
        if form == RFC3164:
            return self.population.texts
        return [_TAG.sub(lambda tag: b"%s %s - - " % (tag[1], tag[2] or b"-"), t) for t in self.population.texts]

    def _body(self, texts: Sequence[bytes]) -> list[pa.Array | bytes]:
        fillings = pa.array(self._fillings, pa.binary()).take(pa.array(self.numbers % len(self._fillings)))
        digits = pc.utf8_lpad(pa.array(self.numbers).cast(pa.string()), 9, "0").cast(pa.binary())
        return [pa.array(texts, pa.binary()).take(pa.array(self._text)), b" ", fillings, b"id=", digits]

    def _formatted(self, pattern: str, convert: Callable[[float], time.struct_time]) -> pa.Array:
        """Return the times, rounded down to seconds, in a pattern of `strftime`."""
        seconds, place = np.unique(self.microseconds // 1_000_000, return_inverse=True)
        texts = [time.strftime(pattern, convert(second)).encode() for second in seconds.tolist()]
        return pa.array(texts, pa.binary()).take(pa.array(place))

    def _joined(self, *parts: pa.Array | bytes) -> pa.Array:
        """Return the concatenation of these parts for each event."""
        if not len(self.numbers):
            return pa.array([], pa.binary())
        return pc.binary_join_element_wise(*(pa.scalar(p) if isinstance(p, bytes) else p for p in parts), b"")


def _host_names(draw: random.Random) -> Sequence[bytes]:
    """Return `HOSTS` different names, every other one with a domain."""
    roles = ("web", "app", "db", "cache", "kafka-broker", "k8s-node", "lb", "batch", "mail", "search", "hadoop-dn")
    sites = ("", "", "", ".fra1", ".iad2.example.com", ".prod.example.net")
    return [f"{draw.choice(roles)}-{number:03d}{draw.choice(sites)}".encode() for number in range(HOSTS)]


def _texts(draw: random.Random) -> Sequence[bytes]:
    """Return `TEXTS` different texts, of 155 bytes on average."""
    words, users = _WORDS.split(), _USERS.split()
    fields: dict[str, Callable[[], object]] = {
        "pid": lambda: draw.randrange(300, 65_000),
        "port": lambda: draw.randrange(1_024, 65_536),
        "small": lambda: draw.randrange(1, 100),
        "big": lambda: draw.randrange(1_000, 10_000_000),
        "digit": lambda: draw.randrange(10),
        "letter": lambda: draw.choice("abcdefgh"),
        "ms": lambda: f"{draw.expovariate(0.02):.3f}",
        "hex": lambda: f"{draw.getrandbits(32):08x}",
        "uuid": lambda: f"{draw.getrandbits(32):08x}-{draw.getrandbits(16):04x}-4{draw.getrandbits(12):03x}",
        "ip": lambda: f"10.{draw.randrange(256)}.{draw.randrange(256)}.{draw.randrange(1, 255)}",
        "user": lambda: draw.choice(users),
        "word": lambda: draw.choice(words),
    }

    def fill(pattern: str) -> str:
        filled = re.sub(r"\{(\w+)\}", lambda field: str(fields[field[1]]()), pattern)
        return filled.replace("{{", "{").replace("}}", "}")

    made: dict[str, None] = {}
    while len(made) < TEXTS:
        made[fill(draw.choice(_PATTERNS))] = None
    return [text.encode() for text in made]
