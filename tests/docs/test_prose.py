"""Findings of `docs/prose.py`: words, and names without units."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture
def prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    path = Path(__file__).parents[2] / "docs" / "prose.py"
    spec = importlib.util.spec_from_file_location("prose", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def faults(prose: ModuleType, source: str) -> list[str]:
    path = prose.ROOT / "module.py"
    path.write_text(source)
    return [line.split(": ", 1)[1].split(": ")[0] for line in prose.findings(path)]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""What it does."""', "begins with 'What'"),
        (f'"""{"word " * 26}."""', "a sentence of 27 words"),
        ('"""The farewell of a client."""', "private term 'farewell'"),
        ("x = 1  # the broker was told", "private term 'told' in a comment"),
        ("# the file is made\n# again", "private term 'made again' in a comment"),
        ("# a dead letter, and pattern letters", None),
        ('LIMIT = 3 << 20\n"""Bytes of a batch."""', "LIMIT is a size without its unit in its name"),
        ('LIMIT_BYTES = 3 << 20\n"""Bytes of a batch."""', None),
        ('LIMIT_EVENTS = 30\n"""Events of a batch, of 100 bytes each."""', None),
        ('A_BYTES, B = 1, 2\n"""Seconds."""', "B is a duration without its unit in its name"),
        (
            'class C:\n    """A class."""\n    PAUSE = 0.5\n    """Seconds."""',
            "PAUSE is a duration without its unit in its name",
        ),
        ('EACH = 10\n"""Events per second."""', None),
        ("time.sleep(PAUSE)", "PAUSE is a duration without its unit in its name"),
        ("end = time.monotonic() + self._LINGER", "_LINGER is a duration without its unit in its name"),
        ("get(timeout=TIMEOUT)", "TIMEOUT is a duration without its unit in its name"),
        ("get(timeout=TIMEOUT_SECONDS)", None),
        ("socket.recv(SIZE, MSG_PEEK)", "SIZE is a size without its unit in its name"),
    ],
)
def test_faults(prose: ModuleType, source: str, fault: str | None) -> None:
    assert faults(prose, source) == ([] if fault is None else [fault])


def test_paragraphs_items_and_cells_are_sentences(prose: ModuleType) -> None:
    words = "word " * 20
    assert faults(prose, f'"""{words}\n\n{words}\n\n- {words}\n- {words}\n\n  a   {words}\n"""') == []
