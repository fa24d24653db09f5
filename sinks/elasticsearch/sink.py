"""Elasticsearch sink."""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import msgspec
import numpy as np

from flafka.plugins import Assignment, Batch, EventId, FlafkaError, Retry, require
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.bulk import DocumentsSink, RequestRefused
from flafka.sinks.elasticsearch.compatibility import ELASTICSEARCH
from flafka.sinks.elasticsearch.config import ElasticsearchConfig
from flafka.sinks.elasticsearch.documents import SERIALIZERS, event_time

_DAY_MS = 86_400_000
_INDEX_ERRORS = {"cluster_block_exception", "index_closed_exception", "validation_exception"}
"""Errors with the status of a refusal that are about an index, which an operator can repair.
Servers with their maximum number of shards raise the last one."""
_DATA_STREAM = "only write ops with an op_type of create are allowed in data streams"
_EVENT_DETAILS = re.compile(
    r"^\[\d+:\d+\] | in document with id '[^']*'|\.? Preview of field's value: '.*'", re.DOTALL
)


class ElasticsearchDocument(NamedTuple):
    """Document of one event."""

    id: EventId
    index_name: str
    lines: bytes
    """Action and document, the two lines of a bulk request."""
    time: int
    """Default of `@timestamp` in a data stream, in milliseconds since the epoch."""

    @property
    def size(self) -> int:
        """Number of bytes of `lines`."""
        return len(self.lines)


class ElasticsearchSink(DocumentsSink[ElasticsearchConfig, ElasticsearchDocument]):
    """Writes each event to a document of Elasticsearch or OpenSearch exactly once, as a redelivery replaces it.

    The id of a document is the id of the event. A document is durable when the servers have answered, because their
    indexes sync their log at each request (`index.translog.durability`, by default). Documents that they refuse, such
    as text in a field of numbers, are rejected; the others of their request are delivered.

    In a data stream, documents are created, and get the time of the event as `@timestamp` if they have none. They are
    unique until its next rollover. Servers: Elasticsearch 7 or later, and all versions of OpenSearch.
    """

    type_name = "elasticsearch"
    libraries: ClassVar = {"opensearchpy": "elasticsearch"}
    aliases = ("org.apache.flume.sink.elasticsearch.ElasticSearchSink",)
    compatibility_notes = ELASTICSEARCH
    max_size = 5 << 20  # servers accept 100 MB by default, proxies often less
    refusal = "Elasticsearch refuses its document"

    def __init__(self, config: ElasticsearchConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._index = BucketPath(config.index_name)
        self._daily = config.index_name_builder == "TimeBasedIndexNameBuilder"
        self._serialize = SERIALIZERS[config.serializer]
        self._streams: set[str] = set()
        """Names that are known to be data streams."""
        self._client: Any = None
        self._library: Any = None

    # --- lifecycle

    def open(self) -> None:
        """Connect to a server and check its version.

        Raises Retry if no server answers to this user, or if Elasticsearch is older than version 7.
        """
        self._library = require("opensearchpy", "elasticsearch")
        config = self.config
        context = config.context()
        logging.getLogger("opensearch").setLevel(logging.CRITICAL)  # it logs a traceback for each failure
        hosts = config.hosts()
        self._client = self._library.OpenSearch(
            hosts,
            http_auth=config.login,
            use_ssl=context is not None,
            ssl_context=context,
            timeout=config.timeout / 1000,
            max_retries=len(hosts) - 1,  # each server once; the runner does all other retries
        )
        try:
            answer = self._request("GET", "/")
        except RequestRefused as e:
            raise Retry(f"{config.addresses} is no Elasticsearch: {e}") from e
        self._check_version(answer)
        self.metrics.add("ConnectionCreatedCount")

    def close(self) -> None:
        """Drop what was not flushed, wait for running requests, and close the connections."""
        super().close()
        if self._client is not None:
            self._client.close()
            self.metrics.add("ConnectionClosedCount")
            self._client = None

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if no server answers to this user, or its version is too old; nothing if one does."""
        try:
            self.open()
        except FlafkaError as e:
            yield str(e)
        finally:
            self.close()

    def _check_version(self, answer: Any) -> None:
        """Raise Retry for an answer that is neither of OpenSearch, nor of Elasticsearch 7 or later."""
        version = answer.get("version") if isinstance(answer, dict) else None
        version = version if isinstance(version, dict) else {}
        number = str(version.get("number", ""))
        if not (major := number.partition(".")[0]).isdecimal():
            raise Retry(f"{self.config.addresses} is no Elasticsearch or OpenSearch: it answers {str(answer)[:80]!r}")
        if version.get("distribution") != "opensearch" and int(major) < 7:
            raise Retry(f"Elasticsearch {number} at {self.config.addresses} is too old: it must be 7 or later")

    # --- writing

    def uses_headers(self) -> Mapping[str, frozenset[str]]:
        """Return the headers in the escapes of indexName, by this option."""
        return {"indexName": self._index.headers}

    def _make_items(self, batch: Batch) -> dict[EventId, str]:
        assert batch.origin is not None
        names, codes = self._index.resolve_batch(batch)
        arrivals = batch.origin.timestamps.tolist()
        rejected: dict[EventId, str] = {}
        for row, (event, code) in enumerate(zip(batch, codes.tolist(), strict=True)):
            id = batch.id(row)
            try:
                index = names[code]
                if isinstance(index, ValueError):
                    raise index
                if self._daily:
                    index += _day(
                        event_time(event.headers, "timestamp", "@timestamp", default=arrivals[row]) // _DAY_MS
                    )
                document = self._serialize(event.body, event.headers)
            except ValueError as e:
                rejected[id] = str(e)
            else:
                action = {"index": {"_index": index, "_id": str(id)}}
                lines = b"%b\n%b\n" % (msgspec.json.encode(action), msgspec.json.encode(document))
                self._items.append(
                    ElasticsearchDocument(id, index, lines, _event_time_or_arrival(event.headers, arrivals[row]))
                )
        return rejected

    def destinations(self, batch: Batch) -> list[dict[str, Any]]:
        """Return `index` and `document` of each event, or `rejected` if it has none."""
        rejected = self._make_items(batch)
        destinations: dict[EventId, dict[str, Any]] = {id: {"rejected": why} for id, why in rejected.items()}
        for item in self._items:
            document = msgspec.json.decode(item.lines.splitlines()[1])
            destinations[item.id] = {"index": item.index_name, "document": document}
        self.reset()
        return [destinations[id] for id in batch.ids()]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Return the documents with the event's id, or `missing` if there is none. Raises Retry.

        Without `batch`, all indexes with the fixed prefix of indexName are searched, and else the event's index.
        """
        pattern = f"{self._index.fixed_prefix}*"
        if batch is not None:
            if rejected := self._make_items(batch):
                return [{"missing": f"it has no document: {reason}"} for reason in rejected.values()]
            pattern = self._items[0].index_name
        self.open()
        try:
            query = msgspec.json.encode({"query": {"ids": {"values": [str(id)]}}})
            path = f"/{quote(pattern, safe='*')}/_search?ignore_unavailable=true"
            answer = self._request("POST", path, query, bulk=False)
        except RequestRefused as e:
            raise Retry(f"Elasticsearch refuses the search: {e}") from e
        finally:
            self.close()
        hits = answer.get("hits", {}).get("hits", []) if isinstance(answer, dict) else []
        documents = [{"index": hit["_index"], "id": hit["_id"], "document": hit.get("_source")} for hit in hits]
        return documents or [
            {"missing": f"no index {pattern} has a document {id}; searches find new ones after a second"}
        ]

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Return a sentence if indexName begins like a data stream, whose documents are unique in one index only.

        Empty otherwise: in an index, redeliveries replace documents. Also empty if the servers do not list data
        streams. Raises Retry if no server answers at first.
        """
        if not self._index.fixed_prefix:
            return ""
        self.open()
        try:
            answer = self._request("GET", f"/_data_stream/{quote(self._index.fixed_prefix)}*")
        except (RequestRefused, Retry):  # the user lacks the right, or the server is too old for data streams
            return ""
        finally:
            self.close()
        streams = answer.get("data_streams") if isinstance(answer, dict) else None
        if not streams:
            return ""
        return f"{streams[0]['name']} is a data stream: documents from before its latest rollover would be duplicated"

    def _send_items(self, documents: Sequence[ElasticsearchDocument]) -> dict[EventId, str]:
        """Send documents, and return the reasons for refused ones, by event id.

        Documents for data streams are sent once more, with the action `create`. Raises RequestRefused if the servers
        refuse the whole request, and Retry for any other failure, such as a closed index.
        """
        answer = self._request("POST", "/_bulk", b"".join(map(self._lines, documents)))
        items = answer.get("items") if isinstance(answer, dict) else None
        if not isinstance(items, list) or len(items) != len(documents):
            raise Retry(f"{self.config.addresses} is no Elasticsearch: it answers {str(answer)[:80]!r}")
        rejected, index_error = {}, ""
        to_create: list[ElasticsearchDocument] = []
        for document, item in zip(documents, items, strict=True):
            ((action, result),) = item.items()
            if result["status"] >= 300:
                error = result.get("error")
                kind = error.get("type") if isinstance(error, dict) else None
                if action == "create" and result["status"] == 409:  # delivered before
                    continue
                if action == "index" and _DATA_STREAM in _reason(error):
                    to_create.append(document)
                elif result["status"] == 400 and kind not in _INDEX_ERRORS:
                    rejected[document.id] = _refusal(kind, _reason(error))
                else:
                    why = f"Elasticsearch does not write to {document.index_name}: {_reason(error)}"
                    index_error = index_error or why
        if index_error:  # the runner redelivers all, which replaces written documents
            raise Retry(index_error)
        if to_create:
            self._streams |= {document.index_name for document in to_create}
            rejected |= self._send_items(to_create)
        return rejected

    def _lines(self, document: ElasticsearchDocument) -> bytes:
        """Return action and document as two lines. A data stream accepts only `create`, and requires `@timestamp`."""
        if document.index_name not in self._streams:
            return document.lines
        source = document.lines.split(b"\n")[1]
        fields = msgspec.json.decode(source, type=dict[str, msgspec.Raw])
        if "@timestamp" not in fields:
            fields["@timestamp"] = msgspec.Raw(b"%d" % document.time)
            source = msgspec.json.encode(fields)
        action = msgspec.json.encode({"create": {"_index": document.index_name, "_id": str(document.id)}})
        return b"%b\n%b\n" % (action, source)

    def _request(self, method: str, path: str, body: bytes | None = None, *, bulk: bool = True) -> Any:
        """Return the decoded answer to a request. `body` is JSON, or lines of JSON if it is `bulk`.

        Raises RequestRefused if the servers can never accept this request, Retry for all other failures.
        """
        library = self._library
        try:
            return self._client.transport.perform_request(
                method,
                path,
                params={"filter_path": "items.*.status,items.*.error"} if body and bulk else None,
                body=body,
                headers={"content-type": "application/x-ndjson" if bulk else "application/json"} if body else None,
            )
        except library.ConnectionError as e:
            self.metrics.add("ConnectionFailedCount")
            raise Retry(self._connection_error(e)) from e
        except library.TransportError as e:
            why = _reason(e.info.get("error") if isinstance(e.info, dict) else e.info or e.error)
            if e.status_code in (400, 413):
                raise RequestRefused("it is too large for a request" if e.status_code == 413 else why) from e
            raise Retry(self._status_error(e.status_code, why)) from e
        except library.SerializationError as e:
            raise Retry(f"{self.config.addresses} is no Elasticsearch: its answer is no JSON") from e

    def _connection_error(self, error: Exception) -> str:
        names, text = self.config.addresses, str(error)
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return f"the certificate of {names} is not accepted: set truststore to a file with its authority"
        if self.config.tls and "SSL" in text:
            return f"the TLS handshake with {names} fails: {text.partition('(')[2][:200]}"
        return f"Elasticsearch is away: no answer from {names}"

    def _status_error(self, status: int, why: str) -> str:
        names = self.config.addresses
        if status in (401, 403):
            return f"Elasticsearch at {names} does not let this user write: check username and password ({why})"
        if status == 429:
            return f"Elasticsearch at {names} is overloaded: {why}"
        return f"Elasticsearch at {names} answers {status}: {why}"


def _event_time_or_arrival(headers: Mapping[str, str], arrival: int) -> int:
    """Return the time in the header `timestamp` or `@timestamp`, in milliseconds; `arrival` without a valid one."""
    try:
        return event_time(headers, "timestamp", "@timestamp", default=arrival)
    except ValueError:
        return arrival


@functools.lru_cache(1000)
def _day(number: int) -> str:
    """Return the suffix of an index name for a day, as `-2026-01-31`, from the number of days since 1970."""
    return f"-{np.datetime64(number, 'D')}"


def _refusal(kind: str | None, reason: str) -> str:
    """Return the reason for a refused document, without details that differ between events."""
    if kind == "invalid_index_name_exception":  # without the name, which may differ for each event
        return f"Elasticsearch refuses its index: its name {reason.partition('], ')[2] or 'is invalid'}"
    return f"{ElasticsearchSink.refusal}: {reason}"


def _reason(error: Any) -> str:
    """Return the first line of a server's error, at most 500 characters, without the details of one document."""
    if not isinstance(error, dict):
        return str(error).strip().partition("\n")[0][:500] or "no reason"
    text = _EVENT_DETAILS.sub("", str(error.get("reason") or error.get("type")))
    if text.endswith("failed to parse") and (cause := error.get("caused_by")):
        text = f"{text}: {_reason(cause)}"
    return text.partition("\n")[0][:500]
