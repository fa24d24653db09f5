"""Hadoop's configuration files."""

from __future__ import annotations

from pathlib import Path

import pytest

from flafka.plugins.java.hadoopxml import read_properties, resolve_property


def test_properties_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "core-site.xml"
    file.write_text(
        "<configuration><property><name> a </name><value> 1\n</value></property>"
        "<property><name>b</name><value/></property><property><name>c</name></property></configuration>"
    )
    assert read_properties(file) == {"a": "1", "b": ""}
    file.write_text("<configuration>")
    with pytest.raises(ValueError, match=r"core-site.xml cannot be read: no element found"):
        read_properties(file)
    with pytest.raises(ValueError, match=r"none.xml cannot be read: .*No such file"):
        read_properties(tmp_path / "none.xml")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("hdfs://${host}:${port}/", "hdfs://nn:8020/"),
        ("${deep}", "nn:8020"),
        ("${env.PLACE}", "here"),
        ("${env.NONE}/${none}", "${env.NONE}/${none}"),
        ("${xxxxPLACE}", "${xxxxPLACE}"),
        ("${circle}", "${circle}"),
    ],
)
def test_references(value: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "here")
    properties = {"x": value, "host": "nn", "port": "8020", "deep": "${host}:${port}", "circle": "${circle}"}
    assert resolve_property(properties, "x") == expected
    assert resolve_property(properties, "missing", "${host}") == "nn"
