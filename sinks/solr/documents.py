"""Documents that a morphline makes from events."""

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

ZOOKEEPER_TIMEOUT_SECONDS = 10
"""Maximum time until ZooKeeper has accepted the connection."""


class DocumentMaker:
    """Runs a morphline on one event at a time, and collects the documents that reach `loadSolr`.

    Deterministic: identifiers of `generateUUID` are derived from the event's id, so that a redelivery replaces the
    documents.
    """

    def __init__(self) -> None:
        self._documents: list[dict[str, Any]] = []

    def attach(self, morphline: Morphline, schema: Mapping[str, Any]) -> None:
        """Set the morphline, and the schema of its collection, as Solr returns it, before the first document."""
        self._morphline = morphline
        self._known_fields = {field["name"] for field in schema.get("fields", ())}
        self._dynamic_fields = [field["name"] for field in schema.get("dynamicFields", ())]
        morphline.compiler.load_document = self._load
        morphline.compiler.is_known_field = self._is_known_field
        morphline.compiler.unique_key = schema.get("uniqueKey", "id")

    def documents(self, id: EventId, event: Event) -> tuple[bool, list[dict[str, Any]]]:
        """Return True if the morphline succeeds with the event, else False, and the documents that it has loaded.

        After a failure these are the documents before it. Raises MorphlineRuntimeError if a command raises an error.
        """
        record = MorphlineRecord({name: [value] for name, value in event.headers.items()})
        if event.body:
            record[BODY] = [event.body]
        numbers = itertools.count()
        self._morphline.compiler.random = lambda: hashlib.sha256(f"{id} {next(numbers)}".encode()).digest()[:16]
        self._documents = []
        return self._morphline.process(record), self._documents

    def _load(self, record: MorphlineRecord) -> None:
        """Append the document of a record that reaches `loadSolr`. A field with one value is no list."""
        document = {name: [_value(value) for value in record[name]] for name in record}
        self._documents.append({name: values if len(values) > 1 else values[0] for name, values in document.items()})

    def _is_known_field(self, name: str) -> bool:
        """Return True if the schema has this field, or a pattern of dynamic fields for it."""
        if name not in self._known_fields and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in self._dynamic_fields
        ):
            self._known_fields.add(name)
        return name in self._known_fields


def _value(value: Any) -> Any:
    """Return a value for JSON: Base64 for bytes, text for a node of JSON, any other as it is."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return str(value) if isinstance(value, JsonNode) else value


def live_address(hosts: str, collection: str) -> str:
    """Return the address of a collection on the first live server that ZooKeeper lists.

    `hosts` are addresses of ZooKeeper with commas, perhaps with a path. Raises Retry if ZooKeeper does not answer, or
    lists no server.
    """
    exceptions = require("kazoo.exceptions", "morphlines")
    timeout = require("kazoo.handlers.threading", "morphlines").KazooTimeoutError
    client = require("kazoo.client", "morphlines").KazooClient(hosts=hosts, read_only=True)
    try:
        client.start(timeout=ZOOKEEPER_TIMEOUT_SECONDS)
        nodes = sorted(client.get_children("/live_nodes"))
    except (exceptions.KazooException, timeout) as e:
        raise Retry(f"ZooKeeper at {hosts} returns no servers of Solr: {e or type(e).__name__}") from e
    finally:
        client.stop()
        client.close()
    if not nodes:
        raise Retry(f"Solr is away: ZooKeeper at {hosts} has no live server")
    server, _, context = nodes[0].partition("_")
    return f"http://{server}/{context.replace('%2F', '/') or 'solr'}/{collection}"
