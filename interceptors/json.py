"""The interceptor `json`: fields of a JSON body as headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pydantic

from flafka.interceptors.patterns import preserve_existing
from flafka.plugins import Batch, Config, Interceptor, Metric, cross_field_validator, option

WRONG = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What comes of a body that cannot be read."""
Array = Any
"""A `pyarrow.Array`."""


class JsonConfig(Config):
    """Options of the interceptor `json`."""

    fields: list[str] = option(
        [],
        name="fields",
        description="Fields that become headers of the same name. `user.id` is the field `id` of the object `user`, "
        "or the field of that very name where there is one.",
    )
    renamed: dict[str, str] = option(
        {}, name="fields.", description="`fields.<header>` is the field that becomes the header of that name."
    )
    preserve_existing: bool = preserve_existing(False)
    on_error: Literal["pass", "drop", "reject"] = option(
        "pass",
        name="onError",
        description="What becomes of an event whose body is no JSON object. `pass`: it goes on as it is. `drop`: it "
        "is dropped. `reject`: it goes to the dead letters. `JsonFailedCount` counts it, whichever it is.",
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
        if twice := [name for name in self.fields if name in self.renamed or self.fields.count(name) > 1]:
            raise ValueError(f"the header {twice[0]} is named twice")

    def headers(self) -> dict[str, str]:
        """The field of each header."""
        return {**{name: name for name in self.fields}, **self.renamed}


def _check_name(field: str) -> None:
    if not field or re.search(r'[\\"\x00-\x1f]', field):
        raise ValueError(f"must name a field, without backslashes, quotes and control characters, not {field!r}")


class JsonInterceptor(Interceptor[JsonConfig]):
    """Copies fields of a JSON body into headers; pure, and no event is lost unless `onError` says so.

    A text becomes a header as it is, anything else as JSON writes it there: `1.50`, `true`, `{"a": 1}`. An event
    without a field, or with null for it, keeps the header it has. Where a name occurs twice, the last one counts.
    """

    type_name = "json"
    declared_metrics = (
        Metric("JsonFailedCount", "counter", "events", "Events whose body is not a JSON object that can be used."),
    )

    def __init__(self, config: JsonConfig, name: str = "") -> None:
        super().__init__(config, name)
        self._fields = config.headers()
        self._reader = Level(self._fields.values())

    def sets_headers(self) -> Collection[str]:
        """Those of the fields."""
        return self._fields

    def intercept(self, batch: Batch) -> Batch:
        """Set the headers; counts the bodies that are no JSON objects as `JsonFailedCount`."""
        objects = [self._reader.read(body) for body in batch.bodies.to_pylist()]
        columns = self._reader.columns(objects)
        found = {header: texts(columns[field]) for header, field in self._fields.items()}
        wrong = {row for row, one in enumerate(objects) if one is None}.union(*(rows for _, rows in found.values()))
        right = pa.array([row not in wrong for row in range(len(batch))], pa.bool_())
        for header, (values, _) in found.items():
            if wrong:
                values = pc.if_else(right, values, None)
            if values.null_count == len(values):
                continue
            if self.config.preserve_existing:
                batch = batch.with_header(header, values, keep=True)
                continue
            if values.null_count:
                values = pc.coalesce(values, batch.header(header).dictionary_decode())
            batch = batch.with_header(header, values)
        if wrong:
            self.metrics.add("JsonFailedCount", len(wrong))
            if self.config.on_error == "reject":
                return self.reject(batch, {row: self._reason(batch.bodies[row].as_py()) for row in wrong})
            if self.config.on_error == "drop":
                return batch.where(right)
        return batch

    def _reason(self, body: bytes) -> str:
        try:
            self._reader.decode(body)
        except WRONG as e:
            return f"the body is no JSON object: {e}"
        return "a field of the body's JSON is no UTF-8"


class Level:
    """Reads some fields of JSON objects, and passes over the others without making anything of them."""

    def __init__(self, paths: Collection[str]) -> None:
        """`paths` are names of fields, or of fields in objects in them: `a.b`."""
        nested: dict[str, list[str]] = {}
        for path in paths:
            parts = path.split(".")
            for end in range(1, len(parts)):
                nested.setdefault(".".join(parts[:end]), []).append(".".join(parts[end:]))
        self._levels = {name: Level(rest) for name, rest in nested.items()}
        names = enumerate(dict.fromkeys([*paths, *nested]))
        self._attributes = {name: f"f{number}" for number, name in names}
        fields = [(attribute, msgspec.Raw, None) for attribute in self._attributes.values()]
        renamed = {attribute: name for name, attribute in self._attributes.items()}
        self.decode: Callable[[Any], Any] = msgspec.json.Decoder(
            msgspec.defstruct("Fields", fields, rename=renamed, gc=False)
        ).decode
        """The object in a body; raises one of `WRONG`."""

    def read(self, body: Any) -> Any:
        """The object in it, or None where it is none."""
        try:
            return self.decode(body)
        except WRONG:
            return None

    def columns(self, objects: Sequence[Any]) -> dict[str, list[Any]]:
        """Each field of these objects, as JSON; None where there is none."""
        found = {
            name: [None if one is None else getattr(one, attribute) for one in objects]
            for name, attribute in self._attributes.items()
        }
        for name, level in self._levels.items():
            inner = [None if value is None else level.read(value) for value in found[name]]
            for rest, values in level.columns(inner).items():
                path = f"{name}.{rest}"
                found[path] = [value if own is None else own for own, value in zip(found[path], values, strict=True)]
        return found


def texts(values: Sequence[Any]) -> tuple[Array, list[int]]:
    """What JSON values are as texts, null where there is none or JSON's null; and the rows of what is no Unicode."""
    raw = [None if value is None else bytes(value) for value in values]
    encoded = pa.array(raw, pa.binary()).dictionary_encode()
    wrong: set[int] = set()
    different: list[str | None] = []
    for code, value in enumerate(encoded.dictionary.to_pylist()):  # each is read once
        try:
            different.append(_text(value))
        except WRONG:
            different.append(None)
            wrong.add(code)
    column = pa.array(different, pa.string()).take(encoded.indices)
    return column, [row for row, code in enumerate(encoded.indices.to_pylist()) if code in wrong] if wrong else []


def _text(value: bytes) -> str | None:
    if value.startswith(b'"'):
        return msgspec.json.decode(value, type=str)
    return None if value == b"null" else value.decode()
