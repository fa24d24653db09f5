"""Libraries that are imported when a component opens, on its own thread."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flafka.plugins.component import require
from flafka.plugins.errors import MissingExtra


def test_a_package_and_a_part_of_it_may_be_required_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "imported_at_once"
    package.mkdir()
    # Long enough for the other thread to begin with `part`, which then waits for the package.
    (package / "__init__.py").write_text("import time\ntime.sleep(0.3)\nfrom .part import VALUE\n")
    (package / "part.py").write_text("import imported_at_once\nVALUE = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = ["imported_at_once", "imported_at_once.part"]
    try:
        with ThreadPoolExecutor() as threads:
            module, part = threads.map(lambda name: require(name, "x"), names)
        assert module.part is part
        assert part.VALUE == 1
    finally:
        for name in names:
            sys.modules.pop(name, None)


def test_a_missing_library_names_its_extra() -> None:
    with pytest.raises(MissingExtra, match=r"no_such_library is not installed: pip install 'flafka\[solr\]'"):
        require("no_such_library", "solr")
