"""Principals and key versions in keytab files."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flafka.plugins.net.keytab import read_principals
from tests.plugins.keytabs import write_keytab

TEXT = st.text(st.characters(exclude_characters="/@", exclude_categories=["Cs"]), min_size=1, max_size=20)
PRINCIPALS = st.builds(
    lambda parts, realm: f"{'/'.join(parts)}@{realm}", st.lists(TEXT, min_size=1, max_size=3), TEXT
)


@given(versions=st.dictionaries(PRINCIPALS, st.integers(1, 1 << 20), max_size=5))
def test_all_principals_are_read(tmp_path_factory: pytest.TempPathFactory, versions: dict[str, int]) -> None:
    assert read_principals(write_keytab(tmp_path_factory.mktemp("keytab") / "k", versions)) == versions


@pytest.mark.parametrize("length", [0, 1, 3, 20, 40])
def test_another_file_and_a_truncated_one_are_errors(tmp_path: Path, length: int) -> None:
    path = write_keytab(tmp_path / "k", {"flume/host@R": 1})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ValueError, match="is not a keytab"):
        read_principals(path)
