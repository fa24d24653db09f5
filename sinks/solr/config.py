"""Options of the Solr sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pydantic

from flafka.plugins import Problem, cross_field_validator, option
from flafka.plugins.morphline.hocon import Scalar
from flafka.plugins.morphline.options import MorphlineConfig
from flafka.sinks.bulk import DocumentsConfig
from flafka.sinks.templates import Template

if TYPE_CHECKING:
    from flafka.plugins.morphline.morphline import Morphline

_HANDLER = "org.apache.flume.sink.solr.morphline.MorphlineHandlerImpl"
_REPLACED_BY_MORPHLINE = ("id_field", "document_id", "body_field", "index_headers", "header_suffix", "fields")
"""Options of the content of documents, which have no effect with a morphline."""


def collection_address(value: str) -> str:
    """Return the address of a collection, without a slash at its end. Raises ValueError for any other URL."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or len(parts.path.strip("/")) == 0:
        raise ValueError(f"must be http://host:8983/solr/<collection>, not {value!r}")
    if parts.username or parts.query:
        raise ValueError("must contain neither user nor parameters: set the options username and password")
    if parts.path.strip("/") == "solr":
        raise ValueError(f"must end in the name of the collection: {value.rstrip('/')}/<collection>")
    return value.rstrip("/")


class SolrConfig(MorphlineConfig, DocumentsConfig):
    """Options of the Solr sink."""

    options_without_effect = MappingProxyType(
        {"isProductionMode": "an event with which a morphline fails always becomes a dead letter"}
    )
    url: str | None = option(
        None,
        name="url",
        description="Address of the collection or core: `http://host:8983/solr/<collection>`, or with `https`. "
        "Required, unless the morphline's `solrLocator` names it.",
    )
    id_field: str = option(
        "id",
        name="idField",
        min_length=1,
        description="Field that gets the document's id: the unique key of the schema.",
    )
    document_id: str = option(
        "%[id]",
        name="documentId",
        min_length=1,
        description="Id of an event's document: text with the same escapes as field.<name>. Of several events with "
        "the same id, only the last one remains.",
    )
    body_field: str = option(
        "body_t",
        name="bodyField",
        description=r"Field that gets the body as text; a byte that is not UTF-8 becomes `\xff`. `none`: no field.",
    )
    index_headers: bool = option(
        True,
        name="indexHeaders",
        description="Make each header a field, named by the header and headerSuffix, unless the body, the id or a "
        "field.<name> fills that field.",
    )
    header_suffix: str = option(
        "_s",
        name="headerSuffix",
        description="Suffix of the names of the headers' fields. In Solr's default schemas, `_s` stands for text.",
    )
    fields: dict[str, str] = option(
        {},
        name="field.",
        description="`field.<name>` is the text of that field. It may contain `%{header}`, `%[body]`, `%[id]`, "
        "`%[time]` (the time of arrival, as a date) and `%[timestamp]` (the time of arrival in ms). A document does "
        "not have the field if its event does not have the header.",
    )
    connections: int = option(
        2,
        name="connections",
        ge=1,
        le=64,
        description="Number of requests that run at the same time. With updateChain it is one, as a chain may change "
        "which documents have the same id.",
    )
    commit_within: int = option(
        1000, name="commitWithin", unit="ms", gt=0, description="Time after which searches find new documents."
    )
    update_chain: str | None = option(
        None,
        name="updateChain",
        description="Name of the update chain in Solr. A chain with a TolerantUpdateProcessor names refused "
        "documents, which is faster than bisection.",
    )
    handler_class: str = option(
        _HANDLER,
        name="handlerClass",
        description="Class that runs the morphline. Only Flume's own class is possible.",
    )

    def locator(self, morphline: Morphline) -> dict[str, str]:
        """Return the `solrLocator` of a morphline; empty if it has no loadSolr.

        Raises ValueError if it is incomplete and `url` is not set, or if two commands have different ones.
        """
        locator: dict[str, str] = {}
        for place, properties in morphline.solr_locators:
            texts = {name: value.source for name, value in properties.items() if isinstance(value, Scalar)}
            current = {name: texts[name] for name in ("solrUrl", "zkHost", "collection") if texts.get(name)}
            if locator and current != locator:
                raise ValueError(f"{place}: names another collection than the command before: use a sink for each")
            locator = current
            if self.url is None:
                _check_locator(place, current)
        return locator

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings of options without effect, as a morphline makes the documents."""
        yield from super().warnings()
        if self.morphline_file is not None:
            for option in self.options():
                if option.field in _REPLACED_BY_MORPHLINE and option.field in self.model_fields_set:
                    yield Problem(option.name, "has no effect: the morphline makes the documents")

    def templates(self) -> dict[str, Template]:
        """Return the template of each configured field, and of the id from documentId, by field."""
        return {name: Template(text) for name, text in self.fields.items()} | {
            self.id_field: Template(self.document_id)
        }

    def option_of(self, field: str) -> str:
        """Return the name of the option that sets this field of a document."""
        return "documentId" if field == self.id_field else f"field.{field}"

    _check_url = pydantic.field_validator("url")(collection_address)

    @pydantic.field_validator("document_id")
    @classmethod
    def _check_document_id(cls, value: str) -> str:
        Template(value)
        return value

    @pydantic.field_validator("fields")
    @classmethod
    def _check_fields(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            try:
                Template(text)
            except ValueError as e:
                raise ValueError(f"{name}: {e}") from None
        return value

    @pydantic.field_validator("handler_class")
    @classmethod
    def _check_handler(cls, value: str) -> str:
        if value != _HANDLER:
            raise ValueError(f"{value} is a Java class, which cannot run here: remove it, or make documents with url")
        return value

    @cross_field_validator("url", "morphline_file")
    def _check_required(self) -> None:
        if self.url is None and self.morphline_file is None:
            raise ValueError("is required: add url = http://host:8983/solr/<collection>")

    @cross_field_validator("body_field", "id_field", "morphline_file")
    def _check_body_field(self) -> None:
        if self.morphline_file is None and self.body_field == self.id_field:
            raise ValueError(
                f"must be another field than idField, {self.id_field!r}: it gets documentId, and the body would be "
                "lost. Set it to a field for the body, or to none"
            )

    @cross_field_validator("fields", "body_field", "id_field", "morphline_file")
    def _check_field_names(self) -> None:
        if self.morphline_file is not None:
            return
        taken = {self.id_field: "must be another field than idField: write the text as documentId"}
        if self.body_field not in ("none", self.id_field):
            taken[self.body_field] = (
                "must be another field than bodyField, as the body would be lost: set bodyField = none to leave the "
                "body out"
            )
        if wrong := [f"{name}: {why}" for name, why in taken.items() if name in self.fields]:
            raise ValueError("\n".join(wrong))

    @cross_field_validator("morphline_file", "morphline_id", "variables", "url")
    def _check_morphline(self) -> None:
        if self.morphline_file is not None and (morphline := self.check_morphline()) is not None:
            locator = self.locator(morphline)
            if self.url is None and not locator:
                raise ValueError(f"{self.morphline_file}: has no loadSolr, so that no document reaches Solr: add it")


def _check_locator(place: str, locator: Mapping[str, str]) -> None:
    if "solrUrl" in locator and "zkHost" not in locator:
        try:
            collection_address(locator["solrUrl"])
        except ValueError as e:
            raise ValueError(f"{place}: solrUrl {e}") from None
    elif "zkHost" not in locator:
        raise ValueError(f"{place}: its solrLocator has neither solrUrl nor zkHost: add one, or the option url")
    elif "$" in locator["zkHost"] or "<" in locator["zkHost"]:
        raise ValueError(f"{place}: zkHost {locator['zkHost']!r} is a placeholder: write its hosts, or add url")
    elif "collection" not in locator:
        raise ValueError(f"{place}: its solrLocator has zkHost and no collection")
