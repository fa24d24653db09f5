"""Documents that a morphline makes of events."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flafka.plugins import Event, EventId, Retry, require
from flafka.plugins.morphline.record import BODY, JsonNode, MorphlineRecord

if TYPE_CHECKING:
    from flafka.plugins.morphline.morphline import Morphline

ZOOKEEPER_TIMEOUT = 10
"""Seconds until it must answer."""


class DocumentMaker:
    """Runs a morphline on one event at a time; what reaches its `loadSolr` are the documents.

    The same event gives the same documents whenever it comes, identifiers of `generateUUID` among them: they are made
    of the event's id, so that a document which is delivered again replaces itself.
    """

    def __init__(self) -> None:
        self._made: list[dict[str, Any]] = []

    def attach(self, morphline: Morphline, schema: Mapping[str, Any]) -> None:
        """Run this morphline from now on, for a collection of that schema, as Solr tells it."""
        self._morphline = morphline
        self._names = {field["name"] for field in schema.get("fields", ())}
        self._patterns = [field["name"] for field in schema.get("dynamicFields", ())]
        morphline.shared.load = self._load
        morphline.shared.known_fields = self._known
        morphline.shared.unique_key = schema.get("uniqueKey", "id")

    def documents(self, id: EventId, event: Event) -> tuple[bool, list[dict[str, Any]]]:
        """Whether the morphline succeeds with the event, and the documents up to where it does.

        Raises Failed where a command cannot do its work.
        """
        record = MorphlineRecord({name: [value] for name, value in event.headers.items()})
        if event.body:
            record[BODY] = [event.body]
        numbers = itertools.count()
        self._morphline.shared.random = lambda: hashlib.sha256(f"{id} {next(numbers)}".encode()).digest()[:16]
        self._made = []
        return self._morphline.process(record), self._made

    def _load(self, record: MorphlineRecord) -> None:
        document = {name: [_value(one) for one in record[name]] for name in record}
        self._made.append({name: values if len(values) > 1 else values[0] for name, values in document.items()})

    def _known(self, name: str) -> bool:
        if name not in self._names and any(fnmatch.fnmatchcase(name, pattern) for pattern in self._patterns):
            self._names.add(name)
        return name in self._names


def _value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, JsonNode) else value


def live_address(hosts: str, collection: str) -> str:
    """The address of a collection on one of the servers that are up, as ZooKeeper knows them. Raises Retry."""
    exceptions = require("kazoo.exceptions", "morphlines")
    timeout = require("kazoo.handlers.threading", "morphlines").KazooTimeoutError
    client = require("kazoo.client", "morphlines").KazooClient(hosts=hosts, read_only=True)
    try:
        client.start(timeout=ZOOKEEPER_TIMEOUT)
        nodes = sorted(client.get_children("/live_nodes"))
    except (exceptions.KazooException, timeout) as e:
        raise Retry(f"ZooKeeper at {hosts} does not say where Solr is: {e or type(e).__name__}") from e
    finally:
        client.stop()
        client.close()
    if not nodes:
        raise Retry(f"Solr is away: ZooKeeper at {hosts} knows no server that is up")
    server, _, context = nodes[0].partition("_")
    return f"http://{server}/{context.replace('%2F', '/') or 'solr'}/{collection}"
