"""Solr sink."""

from __future__ import annotations

import fnmatch
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlencode

import msgspec

from flafka.plugins import Assignment, Batch, ConnectivityWarning, EventId, FlafkaError, Origin, Retry, require
from flafka.plugins.morphline.record import MorphlineRuntimeError
from flafka.sinks.bulk import DocumentsSink, RequestRefused
from flafka.sinks.solr.compatibility import SOLR
from flafka.sinks.solr.config import SolrConfig
from flafka.sinks.solr.documents import DocumentMaker, live_address
from flafka.sinks.templates import decode_text

if TYPE_CHECKING:
    from flafka.plugins.morphline.morphline import Morphline

_NOT_IN_NAMES = re.compile(r"[^\w.]")
_STATUS = re.compile(r"\(HTTP (\d+)\)")


class SolrDocument(NamedTuple):
    """Document of one event."""

    origin: Origin
    row: int
    """Row of the event in its batch."""
    fields: dict[str, Any]
    """Fields that are not empty."""

    @property
    def id(self) -> EventId:
        """Id of the event."""
        return self.origin.id(self.row)

    @property
    def size(self) -> int:
        """Number of characters of its JSON."""
        return len(_as_json(self.fields))


class SolrSink(DocumentsSink[SolrConfig, SolrDocument]):
    """Writes each event to a document of a Solr collection exactly once, as a redelivery replaces it.

    The id of a document is the id of the event, unless `documentId` sets another. An update is as durable as Solr's
    update log: it survives a kill of Solr, committed or not. Documents that Solr refuses, such as text in a field of
    numbers or a `_version_` that does not match, are rejected. All others of their request are delivered.

    With `morphlineFile`, a morphline of Kite's commands makes the documents, any number for each event. Events with
    which it fails are rejected. Documents made before the failure are delivered.
    """

    type_name = "solr"
    compatibility_notes = SOLR
    max_size = 4 << 20
    refusal = "Solr refuses its document"
    libraries: ClassVar = {
        "pysolr": "solr",
        "requests": "solr",
        "kazoo.client": "morphlines",
        "kazoo.handlers.threading": "morphlines",
    }

    @classmethod
    def libraries_for(cls, config: SolrConfig) -> Mapping[str, str]:
        """Return the libraries for Solr, and also for ZooKeeper if there is a morphline, which may name it."""
        more = config.morphline_file is not None
        return {module: extra for module, extra in cls.libraries.items() if more or extra == "solr"}

    aliases = (
        "morphline_solr",
        "org.apache.flume.sink.solr.morphline.MorphlineSolrSink",
        "org.apache.flume.sink.solr.morphline.MorphlineSink",
    )

    def __init__(self, config: SolrConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._templates = config.templates()
        self._maker = DocumentMaker()
        self._url = config.url or ""
        self._id_field = config.id_field
        self._solr: Any = None
        self._errors: tuple[type[Exception], ...] = ()

    # --- lifecycle

    def open(self) -> None:
        """Connect to the collection, with an empty update. Also read its schema if there is a morphline.

        Raises Retry if Solr does not accept the update, does not return the schema, or the morphline cannot run.
        """
        pysolr, requests = require("pysolr", "solr"), require("requests", "solr")
        logging.getLogger("pysolr").setLevel(logging.CRITICAL)  # it logs a traceback for each failure
        session = requests.Session()
        pool = requests.adapters.HTTPAdapter(pool_maxsize=self.config.connections)
        session.mount("http://", pool)
        session.mount("https://", pool)
        session.trust_env = False  # requests to Solr must not go through a proxy for the internet
        session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        if self.config.update_chain:
            session.params = {"update.chain": self.config.update_chain}
        morphline = None
        if self.config.morphline_file is not None:
            morphline = self.config.open_morphline(lambda record: True, self)
            self._url = self._address(morphline)
        self._errors = (pysolr.SolrError, requests.RequestException)
        timeout, login = self.config.timeout / 1000, self.config.login
        self._solr = pysolr.Solr(self._url, timeout=timeout, auth=login, session=session)
        try:
            self._add([])
        except RequestRefused as e:
            raise Retry(f"{self._url} accepts no updates: {e}") from e
        if morphline is not None:
            schema = self._schema()
            if schema is None:
                raise Retry(f"{self._url} does not return its schema, which the morphline's commands need")
            self._maker.attach(morphline, schema)
            self._id_field = schema.get("uniqueKey", self.config.id_field)
        self.metrics.add("ConnectionCreatedCount")

    def close(self) -> None:
        """Drop what was not flushed, wait for running requests, and close the connections."""
        super().close()
        if self._solr is not None:
            self._solr.get_session().close()
            self.metrics.add("ConnectionClosedCount")
            self._solr = None

    def check_connectivity(self) -> Iterator[str]:
        """Yield the error if the collection refuses an empty update.

        If it accepts one, yield a warning for each field that its schema lacks.
        """
        try:
            self.open()
            yield from self._unknown_fields()
        except FlafkaError as e:
            yield str(e)
        finally:
            self.close()

    def _address(self, morphline: Morphline) -> str:
        """Return the address of the collection: the option url, else that of the morphline's `solrLocator`.

        Raises Retry if neither names one, or ZooKeeper lists no live server.
        """
        if self.config.url is not None:
            return self.config.url
        try:
            locator = self.config.locator(morphline)
        except ValueError as e:
            raise Retry(f"the morphline cannot run: {e}") from e
        if not locator:
            raise Retry(f"the morphline cannot run: {self.config.morphline_file} has no loadSolr")
        if "zkHost" in locator:
            return live_address(locator["zkHost"], locator["collection"])
        return locator["solrUrl"].rstrip("/")

    def _schema(self) -> dict[str, Any] | None:
        """Return the collection's schema, as Solr returns it; None on any error, as this user may lack the right."""
        try:
            schema: dict[str, Any] = json.loads(self._solr._send_request("get", "schema?wt=json")).get("schema", {})
        except self._errors:  # the user may lack the right
            return None
        return schema

    def _unknown_fields(self) -> Iterator[ConnectivityWarning]:
        """Yield warnings of fields that the schema lacks, and of a unique key other than idField.

        They are no errors, because some update chains add unknown fields to the schema. There are none with a
        morphline.
        """
        schema = self._schema()
        if schema is None or self.config.morphline_file is not None:
            return
        patterns = [field["name"] for kind in ("fields", "dynamicFields") for field in schema.get(kind, ())]
        body = [] if self.config.body_field == "none" else [self.config.body_field]
        for name in (*body, *self._templates):
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                yield ConnectivityWarning(
                    f"Solr's schema has no field {name!r}: it will refuse the documents or guess its type"
                )
        if schema.get("uniqueKey") != self.config.id_field:
            yield ConnectivityWarning(
                f"idField is {self.config.id_field!r} and the unique key of the schema is "
                f"{schema.get('uniqueKey')!r}: a redelivery duplicates documents"
            )

    # --- writing

    def uses_headers(self) -> dict[str, set[str]]:
        """Return, by option, the headers that its escapes need; an empty mapping with a morphline."""
        if self.config.morphline_file is not None:
            return {}
        return {self.config.option_of(name): template.headers for name, template in self._templates.items()}

    def _concurrency(self) -> int:
        """Return the option connections; 1 with an update chain.

        A chain may change ids, so that the order of documents must be kept.
        """
        return 1 if self.config.update_chain else self.config.connections

    def _key(self, document: SolrDocument) -> str:
        return str(document.fields.get(self._id_field))

    def _make_items(self, batch: Batch) -> dict[EventId, str]:
        """Append the documents of these events, without empty fields. Return the reasons for events without an id."""
        if self.config.morphline_file is not None:
            return self._transform(batch)
        columns = {name: list(template.texts(batch)) for name, template in self._templates.items()}
        texts = columns[self.config.id_field]
        if self.config.body_field != "none":
            columns = {self.config.body_field: list(map(decode_text, batch.bodies.to_pylist())), **columns}
        is_wide = self.config.index_headers and batch.is_wide
        if self.config.index_headers and not is_wide:
            columns = self._header_columns(batch) | columns
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if is_wide:
            fields = {name: self._field(name) for name in batch.header_names}
            pairs = batch.header_maps().to_pylist()
            rows = [{fields[k]: v for k, v in headers} | row for headers, row in zip(pairs, rows, strict=True)]
        if is_wide or any("" in values or {*map(type, values)} != {str} for values in columns.values()):
            rows = [{name: value for name, value in row.items() if isinstance(value, str) and value} for row in rows]
        origin = batch.origin
        assert origin is not None
        without_id = {row: text for row, text in enumerate(texts) if isinstance(text, ValueError)}
        documents = map(SolrDocument, repeat(origin), range(len(batch)), rows)
        self._items += (document for document in documents if document.row not in without_id)
        return {batch.id(row): f"its document has no id: {why}" for row, why in without_id.items()}

    def _field(self, header: str) -> str:
        """Return the field of a header: its name, with `_` for forbidden characters, and headerSuffix."""
        return _NOT_IN_NAMES.sub("_", header) + self.config.header_suffix

    def _header_columns(self, batch: Batch) -> dict[str, list[Any]]:
        """Return the texts of headers by field, None for events without it.

        If several headers of an event have the same field, the last one wins.
        """
        columns: dict[str, list[Any]] = {}
        for name in batch.header_names:
            field, texts = self._field(name), batch.header(name).to_pylist()
            if (earlier := columns.get(field)) is not None:
                texts = [before if text is None else text for text, before in zip(texts, earlier, strict=True)]
            columns[field] = texts
        return columns

    def destinations(self, batch: Batch) -> list[dict[str, Any]] | None:
        """Return the `document` of each event, or `rejected`; None with a morphline, which needs Solr's schema."""
        if self.config.morphline_file is not None:
            return None
        rejected = self._make_items(batch)
        destinations: dict[EventId, dict[str, Any]] = {id: {"rejected": why} for id, why in rejected.items()}
        destinations |= {document.id: {"document": document.fields} for document in self._items}
        self.reset()
        return [destinations[id] for id in batch.ids()]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Return documents, committed or not, by the id of the event, or by the ids that the event gives them.

        A document that Solr does not have is `missing`. Without `batch` the result is `unknown` if the event's id is
        not the document's. Raises Retry.
        """
        has_event_id = self.config.morphline_file is None and self.config.document_id == "%[id]"
        if batch is None and not has_event_id:
            return [{"unknown": "the id of its document depends on the event itself"}]
        self.open()
        try:
            names = [str(id)]
            if batch is not None:
                self._make_items(batch)  # documents of a morphline before its failure are delivered
                names = [str(document.fields.get(self._id_field)) for document in self._items]
            return [self._find_document(name) for name in names] or [{"missing": "it has no document"}]
        finally:
            self.close()

    def _find_document(self, name: str) -> dict[str, Any]:
        """Return the document with this unique key as a result of `trace`, or `missing`. Raises Retry."""
        try:
            answer = json.loads(self._solr._send_request("get", f"get?{urlencode({'id': name, 'wt': 'json'})}"))
        except self._errors as e:
            status = int(match[1]) if (match := _STATUS.search(str(e))) else 0
            raise Retry(self._status_error(status, str(e))) from e
        if not (document := answer.get("doc")):
            return {"missing": f"{self._url} has no document {name}"}
        return {"collection": self._url, "id": name, "document": document}

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Return an empty text if ids of documents are the events', or a morphline makes them.

        Else return a sentence, as an older event could replace a newer one.
        """
        if self.config.morphline_file is not None or self.config.document_id == "%[id]":
            return ""
        return f"documentId {self.config.document_id} is not the event's id: an older event would replace a newer one"

    def _transform(self, batch: Batch) -> dict[EventId, str]:
        """Append the documents that the morphline makes. Return the reasons for failed events, by id.

        Documents that an event made before its failure are kept, unless a command raised an error.
        """
        failed: dict[EventId, str] = {}
        assert batch.origin is not None
        for row, event in enumerate(batch):
            id = batch.id(row)
            try:
                success, documents = self._maker.documents(id, event)
            except MorphlineRuntimeError as e:
                failed[id] = f"a command of the morphline raises an error: {e}"
                continue
            self._items += [SolrDocument(batch.origin, row, _filled(fields)) for fields in documents]
            if not success:
                failed[id] = "a command of the morphline fails"
        return failed

    def _send_items(self, documents: Sequence[SolrDocument]) -> dict[EventId, str]:
        """Send documents, and return the reasons for those that a tolerant update chain refuses, by event id.

        A document that Solr has already is not refused. Raises RequestRefused without such a chain, and Retry.
        """
        try:
            reasons = self._refusals(self._add([document.fields for document in documents]))
        except RequestRefused as e:
            if len(documents) == 1 and _is_stored(documents[0], str(e)):
                return {}
            raise
        if not reasons:
            return {}
        names = [str(document.fields.get(self._id_field)) for document in documents]
        if unknown := reasons.keys() - set(names):  # the schema's unique key is another field than idField
            raise RequestRefused(reasons[unknown.pop()])
        return {
            document.id: f"{self.refusal}: {reasons[name]}"
            for document, name in zip(documents, names, strict=True)
            if name in reasons and not _is_stored(document, reasons[name])
        }

    def _refusals(self, answer: str) -> dict[str, str]:
        """Return the reasons of a tolerant update chain, by unique key; an empty mapping without one.

        Raises Retry if the answer is not JSON.
        """
        try:
            errors = json.loads(answer).get("responseHeader", {}).get("errors", [])
        except ValueError as e:
            raise Retry(f"{self._url} is no Solr: it answers {answer[:80]!r}") from e
        return {error["id"]: _sentence(error["message"]) for error in errors}

    def _add(self, documents: list[dict[str, Any]]) -> str:
        """Send documents in one request, and return the answer as text.

        Raises RequestRefused if Solr refuses a document, Retry for all other failures.
        """
        try:
            answer: str = self._solr._send_request(
                "post",
                f"update/?commitWithin={self.config.commit_within}",
                _as_json(documents),
                {"content-type": "application/json; charset=utf-8"},
            )
        except self._errors as e:
            status = int(match[1]) if (match := _STATUS.search(str(e))) else 0
            if status in (400, 409, 413):
                raise RequestRefused(_sentence(str(e))) from e
            if not status:
                self.metrics.add("ConnectionFailedCount")
            raise Retry(self._status_error(status, str(e))) from e
        return answer

    def _status_error(self, status: int, text: str) -> str:
        url = self._url
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return f"the certificate of {url} is not accepted: set REQUESTS_CA_BUNDLE to a file with its authority"
        if not status:
            return f"Solr is away: no answer from {url}"
        if status in (404, 405):
            return f"Solr has no collection or core {url}: create it, or correct url"
        if status in (401, 403):
            return f"Solr at {url} does not let this user write: check username and password"
        return f"Solr at {url} answers {status}: {_sentence(text)}"


def _is_stored(document: SolrDocument, refusal: str) -> bool:
    """Return True if Solr refuses a document because it has it already: a negative `_version_` requires a new one."""
    return "version conflict" in refusal and str(document.fields.get("_version_")).startswith("-")


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields whose values are neither empty texts nor None."""
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _as_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeEncodeError:  # a morphline can read half of a surrogate pair, from an escape in JSON
        return json.dumps(value)


def _sentence(text: str) -> str:
    """Return the first line of Solr's message in an error of Solr or pysolr, at most 500 characters."""
    reason = re.search(r"\[Reason: (.*)\]", text, re.DOTALL)
    return (reason[1] if reason else text).partition("\n")[0].removeprefix("ERROR: ")[:500]
