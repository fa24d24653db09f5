"""The Solr sink."""

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
from flafka.plugins.morphline.record import Failed
from flafka.sinks.bulk import DocumentsSink, RequestRefused
from flafka.sinks.solr.compatibility import SOLR
from flafka.sinks.solr.config import SolrConfig
from flafka.sinks.solr.documents import DocumentMaker, live_address
from flafka.sinks.templates import readable

if TYPE_CHECKING:
    from flafka.plugins.morphline.morphline import Morphline

_NOT_IN_NAMES = re.compile(r"[^\w.]")
_STATUS = re.compile(r"\(HTTP (\d+)\)")


class SolrDocument(NamedTuple):
    """An event, as Solr gets it."""

    origin: Origin
    place: int
    """Row of the event in its batch."""
    fields: dict[str, Any]
    """Without those that are empty."""

    @property
    def id(self) -> EventId:
        """The event's."""
        return self.origin.id(self.place)

    @property
    def size(self) -> int:
        """Characters of its JSON."""
        return len(_as_json(self.fields))


class SolrSink(DocumentsSink[SolrConfig, SolrDocument]):
    """Makes each event a document of a Solr collection, exactly once: one that is delivered again replaces itself.

    The document's id is the event's, unless `documentId` makes another. An update is as durable as Solr's log of
    updates: it survives a Solr that is killed, committed or not. Documents that Solr refuses, such as text in a
    field of numbers or a `_version_` that does not fit, are rejected; the others of their request are delivered.

    With `morphlineFile`, a morphline of Kite's commands makes the documents, any number of each event. Events with
    which it fails are rejected; documents made of such an event before the failure are delivered.
    """

    type_name = "solr"
    compatibility_notes = SOLR
    most_size = 4 << 20
    refusal = "Solr refuses its document"
    libraries: ClassVar = {
        "pysolr": "solr",
        "requests": "solr",
        "kazoo.client": "morphlines",
        "kazoo.handlers.threading": "morphlines",
    }

    @classmethod
    def libraries_for(cls, config: SolrConfig) -> Mapping[str, str]:
        """Return the libraries for Solr, and those for ZooKeeper where a morphline may name it."""
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

    # --- life

    def open(self) -> None:
        """Reach the collection, with an update of nothing."""
        pysolr, requests = require("pysolr", "solr"), require("requests", "solr")
        logging.getLogger("pysolr").setLevel(logging.CRITICAL)  # it logs a traceback for what is told here in words
        session = requests.Session()
        pool = requests.adapters.HTTPAdapter(pool_maxsize=self.config.connections)
        session.mount("http://", pool)
        session.mount("https://", pool)
        session.trust_env = False  # a proxy out of this network is no way to Solr
        session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or True
        if self.config.update_chain:
            session.params = {"update.chain": self.config.update_chain}
        morphline = None
        if self.config.morphline_file is not None:
            morphline = self.config.opened(lambda record: True, self)
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
                raise Retry(f"{self._url} does not tell its schema, which the morphline's commands need")
            self._maker.attach(morphline, schema)
            self._id_field = schema.get("uniqueKey", self.config.id_field)
        self.metrics.add("ConnectionCreatedCount")

    def close(self) -> None:
        """Drop what was not flushed, and close the connections."""
        super().close()
        if self._solr is not None:
            self._solr.get_session().close()
            self.metrics.add("ConnectionClosedCount")
            self._solr = None

    def check_connectivity(self) -> Iterator[str]:
        """Check that the collection takes an update of nothing, and that its schema has the fields."""
        try:
            self.open()
            yield from self._unknown_fields()
        except FlafkaError as e:
            yield str(e)
        finally:
            self.close()

    def _address(self, morphline: Morphline) -> str:
        """Address of the collection: the option, else the morphline's `solrLocator`."""
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
        try:
            found: dict[str, Any] = json.loads(self._solr._send_request("get", "schema?wt=json")).get("schema", {})
        except self._errors:  # not everyone may read it
            return None
        return found

    def _unknown_fields(self) -> Iterator[ConnectivityWarning]:
        """Warn only, because some update chains add unknown fields to the schema."""
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
                f"{schema.get('uniqueKey')!r}: what is delivered again is there twice"
            )

    # --- writing

    def uses_headers(self) -> dict[str, set[str]]:
        """By option: the headers that its escapes need."""
        if self.config.morphline_file is not None:
            return {}
        return {self.config.option_of(name): template.headers for name, template in self._templates.items()}

    def _at_once(self) -> int:
        """One with a chain, which may give documents other ids: which have the same one is not known here."""
        return 1 if self.config.update_chain else self.config.connections

    def _key(self, document: SolrDocument) -> str:
        return str(document.fields.get(self._id_field))

    def _make(self, batch: Batch) -> dict[EventId, str]:
        if self.config.morphline_file is not None:
            return self._transform(batch)
        columns = {name: list(template.texts(batch)) for name, template in self._templates.items()}
        texts = columns[self.config.id_field]
        if self.config.body_field != "none":
            columns = {self.config.body_field: list(map(readable, batch.bodies.to_pylist())), **columns}
        wide = self.config.index_headers and batch.is_wide
        if self.config.index_headers and not wide:
            columns = self._header_columns(batch) | columns
        made = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        if wide:
            fields = {name: self._field(name) for name in batch.header_names}
            pairs = batch.header_maps().to_pylist()
            made = [{fields[k]: v for k, v in some} | one for some, one in zip(pairs, made, strict=True)]
        if wide or any("" in values or {*map(type, values)} != {str} for values in columns.values()):
            made = [{name: value for name, value in one.items() if isinstance(value, str) and value} for one in made]
        origin = batch.origin
        assert origin is not None
        nameless = {row: text for row, text in enumerate(texts) if isinstance(text, ValueError)}
        documents = map(SolrDocument, repeat(origin), range(len(batch)), made)
        self._made += (document for document in documents if document.place not in nameless)
        return {batch.id(row): f"its document has no id: {why}" for row, why in nameless.items()}

    def _field(self, header: str) -> str:
        return _NOT_IN_NAMES.sub("_", header) + self.config.header_suffix

    def _header_columns(self, batch: Batch) -> dict[str, list[Any]]:
        """By field: the headers that are called so; of several of an event the last."""
        columns: dict[str, list[Any]] = {}
        for name in batch.header_names:
            field, texts = self._field(name), batch.header(name).to_pylist()
            if (others := columns.get(field)) is not None:
                texts = [other if text is None else text for text, other in zip(texts, others, strict=True)]
            columns[field] = texts
        return columns

    def destinations(self, batch: Batch) -> list[dict[str, Any]] | None:
        """The document of each event; a morphline needs Solr's schema."""
        if self.config.morphline_file is not None:
            return None
        told: dict[EventId, dict[str, Any]] = {id: {"rejected": why} for id, why in self._make(batch).items()}
        told |= {one.id: {"document": one.fields} for one in self._made}
        self.reset()
        return [told[id] for id in batch.ids()]

    def trace(self, assignment: Assignment, id: EventId, batch: Batch | None) -> list[dict[str, Any]]:
        """Find documents, committed or not: by the id of the event, or as the event makes them."""
        own = self.config.morphline_file is None and self.config.document_id == "%[id]"
        if batch is None and not own:
            return [{"unknown": "the id of its document is made of the event itself"}]
        self.open()
        try:
            names = [str(id)]
            if batch is not None:
                self._make(batch)  # a morphline's documents before its failure are there
                names = [str(one.fields.get(self._id_field)) for one in self._made]
            return [self._traced(name) for name in names] or [{"missing": "it makes no document"}]
        finally:
            self.close()

    def _traced(self, name: str) -> dict[str, Any]:
        try:
            answer = json.loads(self._solr._send_request("get", f"get?{urlencode({'id': name, 'wt': 'json'})}"))
        except self._errors as e:
            status = int(found[1]) if (found := _STATUS.search(str(e))) else 0
            raise Retry(self._trouble(status, str(e))) from e
        if not (document := answer.get("doc")):
            return {"missing": f"{self._url} has no document {name}"}
        return {"collection": self._url, "id": name, "document": document}

    def duplicate_risk(self, assignment: Assignment) -> str:
        """Documents replace themselves; where others have their ids too, an older one would replace a newer one."""
        if self.config.morphline_file is not None or self.config.document_id == "%[id]":
            return ""
        return (
            f"documentId {self.config.document_id} is not the event's own: an older event would replace a newer one"
        )

    def _transform(self, batch: Batch) -> dict[EventId, str]:
        """Add the documents of these events to `_made`, made by the morphline."""
        failed: dict[EventId, str] = {}
        assert batch.origin is not None
        for row, event in enumerate(batch):
            id = batch.id(row)
            try:
                success, made = self._maker.documents(id, event)
            except Failed as e:
                failed[id] = f"a command of the morphline raises an error: {e}"
                continue
            self._made += [SolrDocument(batch.origin, row, _filled(fields)) for fields in made]
            if not success:
                failed[id] = "a command of the morphline fails with it"
        return failed

    def _put(self, documents: Sequence[SolrDocument]) -> dict[EventId, str]:
        """Send documents, and return why a tolerant update chain refuses some. Raises RequestRefused without one."""
        try:
            reasons = self._refusals(self._add([document.fields for document in documents]))
        except RequestRefused as e:
            if len(documents) == 1 and _is_there(documents[0], str(e)):
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
            if name in reasons and not _is_there(document, reasons[name])
        }

    def _refusals(self, answer: str) -> dict[str, str]:
        """Reasons of a tolerant update chain, by the unique key of the document."""
        try:
            errors = json.loads(answer).get("responseHeader", {}).get("errors", [])
        except ValueError as e:
            raise Retry(f"{self._url} is no Solr: it answers {answer[:80]!r}") from e
        return {error["id"]: _sentence(error["message"]) for error in errors}

    def _add(self, documents: list[dict[str, Any]]) -> str:
        """Send one request. Raises RequestRefused where Solr cannot take one of the documents, else Retry."""
        try:
            answer: str = self._solr._send_request(
                "post",
                f"update/?commitWithin={self.config.commit_within}",
                _as_json(documents),
                {"content-type": "application/json; charset=utf-8"},
            )
        except self._errors as e:
            status = int(found[1]) if (found := _STATUS.search(str(e))) else 0
            if status in (400, 409, 413):
                raise RequestRefused(_sentence(str(e))) from e
            if not status:
                self.metrics.add("ConnectionFailedCount")
            raise Retry(self._trouble(status, str(e))) from e
        return answer

    def _trouble(self, status: int, text: str) -> str:
        url = self._url
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return f"the certificate of {url} is not accepted: REQUESTS_CA_BUNDLE names a file with your authorities"
        if not status:
            return f"Solr is away: no answer from {url}"
        if status in (404, 405):
            return f"Solr has no collection or core {url}: create it, or mend url"
        if status in (401, 403):
            return f"Solr at {url} does not let this user write: check username and password"
        return f"Solr at {url} answers {status}: {_sentence(text)}"


def _is_there(document: SolrDocument, refusal: str) -> bool:
    """Return True if Solr refuses a document only because it has it: a negative `_version_` asks for a new one."""
    return "version conflict" in refusal and str(document.fields.get("_version_")).startswith("-")


def _filled(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value not in ("", None)}


def _as_json(what: Any) -> str:
    try:
        return msgspec.json.encode(what).decode()
    except UnicodeEncodeError:  # a morphline reads half a character out of JSON that has it escaped
        return json.dumps(what)


def _sentence(text: str) -> str:
    """Solr's own words in an error of its, or of pysolr's."""
    reason = re.search(r"\[Reason: (.*)\]", text, re.DOTALL)
    return (reason[1] if reason else text).partition("\n")[0].removeprefix("ERROR: ")[:500]
