"""Options of the Solr sink."""

from __future__ import annotations

from urllib.parse import urlsplit

import pydantic
from pydantic import SecretStr

from plugins import Config, agreement, option
from sinks.templates import Template

_MORPHLINE = "Refused: there are no morphlines here; the error names the options to use instead."


class SolrConfig(Config):
    """Options of the Solr sink."""

    url: str | None = option(
        None,
        name="url",
        validate_default=True,
        description="Address of the collection or core: `http://host:8983/solr/<collection>`, or with `https`. "
        "Required.",
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
        description="Id of an event's document: text that may contain the same as field.<name>. Of several events "
        "with the same id, only the last one stays.",
    )
    body_field: str = option(
        "body_t",
        name="bodyField",
        description=r"Field that gets the body as text; a byte that is not UTF-8 becomes `\xff`. `none`: no field.",
    )
    index_headers: bool = option(
        True,
        name="indexHeaders",
        description="Make each header a field, named by the header and headerSuffix.",
    )
    header_suffix: str = option(
        "_s",
        name="headerSuffix",
        description="End of the names of the headers' fields. In Solr's default schemas, `_s` stands for text.",
    )
    fields: dict[str, str] = option(
        {},
        name="field.",
        description="`field.<name>` is the text of that field. It may contain `%{header}`, `%[body]`, `%[id]`, "
        "`%[time]` (the time of arrival, as a date) and `%[timestamp]` (the time of arrival in ms). A document does "
        "not have the field if its event does not have the header.",
    )
    commit_within: int = option(
        1000, name="commitWithin", unit="ms", gt=0, description="Time after which searches find new documents."
    )
    update_chain: str | None = option(
        None,
        name="updateChain",
        description="Name of the update chain in Solr. If it has a TolerantUpdateProcessor, refused documents are "
        "found faster.",
    )
    batch_size: int = option(
        1000, name="batchSize", unit="events", gt=0, description="Number of events after which they are sent."
    )
    batch_duration: int = option(
        1000,
        name="batchDurationMillis",
        unit="ms",
        gt=0,
        description="Time after which events are sent, even if there are fewer.",
    )
    timeout: int = option(
        30_000, name="timeout", unit="ms", ge=100, description="Maximum time that an answer may take."
    )
    username: str | None = option(None, name="username", description="Name of the user, if Solr requires one.")
    password: SecretStr | None = option(None, name="password", description="Password of the user.")
    morphline_file: str | None = option(None, name="morphlineFile", description=_MORPHLINE)
    morphline_id: str | None = option(None, name="morphlineId", description=_MORPHLINE)
    handler_class: str | None = option(None, name="handlerClass", description=_MORPHLINE)
    production_mode: str | None = option(None, name="isProductionMode", description=_MORPHLINE)
    recoverable: str | None = option(None, name="recoverableExceptionClasses", description=_MORPHLINE)
    ignoring: str | None = option(None, name="isIgnoringRecoverableExceptions", description=_MORPHLINE)

    def templates(self) -> dict[str, Template]:
        """What makes the fields that are mapped one by one, the id among them."""
        return {name: Template(text) for name, text in self.fields.items()} | {
            self.id_field: Template(self.document_id)
        }

    def option_of(self, field: str) -> str:
        """The option that maps this field."""
        return "documentId" if field == self.id_field else f"field.{field}"

    @pydantic.field_validator("url")
    @classmethod
    def _check_url(cls, value: str | None) -> str:
        if value is None:
            raise ValueError("is required: add url = http://host:8983/solr/<collection>")
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or len(parts.path.strip("/")) == 0:
            raise ValueError(f"must be http://host:8983/solr/<collection>, not {value!r}")
        if parts.username or parts.query:
            raise ValueError("must be the address alone: write username and password as options of their own")
        if parts.path.strip("/") == "solr":
            raise ValueError(f"must end in the name of the collection: {value.rstrip('/')}/<collection>")
        return value.rstrip("/")

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

    @pydantic.field_validator("morphline_file", "morphline_id", "handler_class")
    @classmethod
    def _refuse_morphlines(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError(
                "morphlines do not run here: remove it, and say with url, bodyField and field.<name> which fields a "
                "document has; regex_extractor on the source turns parts of a body into headers"
            )
        return value

    @pydantic.field_validator("production_mode", "recoverable", "ignoring")
    @classmethod
    def _refuse_modes(cls, value: str | None) -> str | None:
        if value is not None:
            raise ValueError(
                "is not needed: remove it. What Solr refuses goes to the dead letters, other failures are tried again"
            )
        return value

    @agreement("username", "password")
    def _check_password(self) -> None:
        if (self.username is None) != (self.password is None):
            raise ValueError("must be set together with password")
