"""Interceptor `json`: fields of a JSON body as headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from flafka.interceptors.patterns import preserve_existing_option
from flafka.plugins import Batch, Config, Interceptor, Metric, cross_field_validator, option

DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of an invalid JSON body."""
Array = Any
"""A `pyarrow.Array`."""


class JsonConfig(Config):
    """Options of the interceptor `json`."""

    fields: list[str] = option(
        [],
        name="fields",
        description="Fields that become headers of the same name. `user.id` is the field `id` of the object `user`, "
        "or the field with this exact name if there is one.",
    )
    renamed: dict[str, str] = option(
        {}, name="fields.", description="`fields.<header>` is the field that becomes the header of that name."
    )
    preserve_existing: bool = preserve_existing_option(False)
    on_error: Literal["pass", "drop", "reject"] = option(
        "pass",
        name="onError",
        description="Treatment of an event whose body is not a JSON object. `pass`: it passes unchanged. `drop`: it "
        "is dropped. `reject`: it becomes a dead letter. `JsonFailedCount` counts it in each case.",
    )

    @pydantic.field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: list[str]) -> list[str]:
        for field in fields:
            _check_name(field)
        return fields

    @pydantic.field_validator("renamed")
    @classmethod
    def _check_renamed(cls, renamed: dict[str, str]) -> dict[str, str]:
        for header, field in renamed.items():
            try:
                _check_name(field)
            except ValueError as e:
                raise ValueError(f"{header}: {e}") from None
        return renamed

    @cross_field_validator("fields", "renamed")
    def _has_fields(self) -> None:
        if not self.fields and not self.renamed:
            raise ValueError("is required: fields = user status, or fields.<header> = <field>")
        if duplicates := [name for name in self.fields if name in self.renamed or self.fields.count(name) > 1]:
            raise ValueError(f"the header {duplicates[0]} is named twice")

    def headers(self) -> dict[str, str]:
        """Return the field of each header, by header name: `fields` first, then `fields.<header>`."""
        return {**{name: name for name in self.fields}, **self.renamed}


def _check_name(field: str) -> None:
    """Raise ValueError if the name of a field is empty or has a backslash, a quote or a control character."""
    if not field or re.search(r'[\\"\x00-\x1f]', field):
        raise ValueError(f"must name a field, without backslashes, quotes and control characters, not {field!r}")


class JsonInterceptor(Interceptor[JsonConfig]):
    """Copies fields of a JSON body into headers; pure, and no event is lost unless `onError` says so.

    A text becomes a header unchanged, any other value as its JSON source: `1.50`, `true`, `{"a": 1}`. An event whose
    field is missing or null keeps its header. The last of duplicate fields counts.
    """

    type_name = "json"
    declared_metrics = (
        Metric("JsonFailedCount", "counter", "events", "Events whose body is not a JSON object that can be used."),
    )

    def __init__(self, config: JsonConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._fields = config.headers()
        self._reader = FieldReader(self._fields.values())

    def sets_headers(self) -> Collection[str]:
        """Return the names of the headers."""
        return self._fields

    def intercept(self, batch: Batch) -> Batch:
        """Return the events with fields of their JSON bodies as headers.

        An event without the field, or with null, keeps its header; with `preserveExisting`, any event that has it. An
        event whose body is no JSON object is counted as `JsonFailedCount`. It passes unchanged, is dropped, or
        becomes a dead letter, as `onError` says.
        """
        objects = [self._reader.read(body) for body in batch.bodies.to_pylist()]
        columns = self._reader.columns(objects)
        texts = {header: to_texts(columns[field]) for header, field in self._fields.items()}
        invalid = {row for row, decoded in enumerate(objects) if decoded is None}
        invalid = invalid.union(*(rows for _, rows in texts.values()))
        is_valid = pa.array([row not in invalid for row in range(len(batch))], pa.bool_())
        for header, (values, _) in texts.items():
            if invalid:
                values = pc.if_else(is_valid, values, None)
            if values.null_count == len(values):
                continue
            if self.config.preserve_existing:
                batch = batch.with_header(header, values, preserve_existing=True)
                continue
            if values.null_count:
                values = pc.coalesce(values, batch.header(header).dictionary_decode())
            batch = batch.with_header(header, values)
        if invalid:
            self.metrics.add("JsonFailedCount", len(invalid))
            if self.config.on_error == "reject":
                return self.reject(batch, {row: self._reason(batch.bodies[row].as_py()) for row in invalid})
            if self.config.on_error == "drop":
                return batch.where(is_valid)
        return batch

    def _reason(self, body: bytes) -> str:
        """Return why an event with this body is rejected: no JSON object, or a field that is not UTF-8."""
        try:
            self._reader.decode(body)
        except DECODE_ERRORS as e:
            return f"the body is not a JSON object: {e}"
        return "a field of the body's JSON is not UTF-8"


class FieldReader:
    """Reader of some fields of JSON objects, which skips other fields without decoding them."""

    def __init__(self, paths: Collection[str]) -> None:
        """Read the fields with these paths; `a.b` is the field of that name, or the field `b` of the object `a`."""
        nested: dict[str, list[str]] = {}
        for path in paths:
            parts = path.split(".")
            for end in range(1, len(parts)):
                nested.setdefault(".".join(parts[:end]), []).append(".".join(parts[end:]))
        self._nested_readers = {name: FieldReader(subpaths) for name, subpaths in nested.items()}
        names = enumerate(dict.fromkeys([*paths, *nested]))
        self._attributes = {name: f"f{number}" for number, name in names}
        fields = [(attribute, msgspec.Raw, None) for attribute in self._attributes.values()]
        renamed = {attribute: name for name, attribute in self._attributes.items()}
        self.decode: Callable[[Any], Any] = msgspec.json.Decoder(
            msgspec.defstruct("Fields", fields, rename=renamed, gc=False)
        ).decode
        """Decoder of the object in a body. Raises one of `DECODE_ERRORS`."""

    def read(self, body: Any) -> Any:
        """Return the decoded object, for `columns`; None if the body is not a valid JSON object."""
        try:
            return self.decode(body)
        except DECODE_ERRORS:
            return None

    def columns(self, objects: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the JSON source of each field by path, one entry per object; None in objects without the field.

        For the path `a.b`, a field named `a.b` comes before the field `b` of `a`.
        """
        columns = {
            name: [None if decoded is None else getattr(decoded, attribute) for decoded in objects]
            for name, attribute in self._attributes.items()
        }
        for name, reader in self._nested_readers.items():
            inner = [None if value is None else reader.read(value) for value in columns[name]]
            for subpath, values in reader.columns(inner).items():
                path = f"{name}.{subpath}"
                columns[path] = [
                    value if exact is None else exact for exact, value in zip(columns[path], values, strict=True)
                ]
        return columns


def to_texts(values: Sequence[Any]) -> tuple[Array, list[int]]:
    """Return JSON sources as a column of texts, and the rows with invalid Unicode.

    A JSON string is decoded, any other value stays as its source. None, JSON's null and invalid Unicode become null.
    """
    raw = [None if value is None else bytes(value) for value in values]
    encoded = pa.array(raw, pa.binary()).dictionary_encode()
    invalid: set[int] = set()
    distinct: list[str | None] = []
    for code, value in enumerate(encoded.dictionary.to_pylist()):  # each distinct value is decoded once
        try:
            distinct.append(_text(value))
        except DECODE_ERRORS:
            distinct.append(None)
            invalid.add(code)
    column = pa.array(distinct, pa.string()).take(encoded.indices)
    return column, [row for row, code in enumerate(encoded.indices.to_pylist()) if code in invalid] if invalid else []


def _text(value: bytes) -> str | None:
    """Return a JSON string decoded, any other JSON value as its source; None for null."""
    if value.startswith(b'"'):
        return msgspec.json.decode(value, type=str)
    return None if value == b"null" else value.decode()
