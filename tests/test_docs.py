"""The generated documentation is the present one."""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def test_generated_pages_are_up_to_date():
    spec = importlib.util.spec_from_file_location("build", DOCS / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert (DOCS / "components.md").read_text() == build.page(), "run ./dev docs"
    migrating = (DOCS / "migrating-from-flume.md").read_text()
    assert migrating == build.migrating(migrating), "run ./dev docs"


def test_links_between_pages_lead_somewhere():
    for page in [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|<)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.fixture
def site_plugin(tmp_path):
    """The directory with the files of CONTRIBUTING.md."""
    page = (DOCS.parent / "CONTRIBUTING.md").read_text()
    directory = tmp_path / "site"
    directory.mkdir()
    for code, name in re.findall(r'```python\n("""(\w+\.py).*?)```', page, re.S):
        (directory / name).write_text(code)
    assert {path.name for path in directory.iterdir()} == {"site_plugin.py", "test_site_plugin.py"}
    return directory


def test_the_components_of_contributing_md_pass_the_kit(site_plugin, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(site_plugin)
    for name in ("site_plugin", "test_site_plugin"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tests = importlib.import_module("test_site_plugin")
    tests.test_the_source()
    tests.test_the_sink(tmp_path)
    assert {name for name in vars(tests) if name.startswith("test_")} == {"test_the_source", "test_the_sink"}


@pytest.mark.usefixtures("lengthy")
def test_the_components_of_contributing_md_pass_the_type_checker(site_plugin, pytestconfig):
    ours = str(DOCS.parent)
    cache = f"--cache-dir={pytestconfig.cache.mkdir('mypy')}"
    options = ["--strict", cache, "--config-file", os.devnull, "--follow-imports=silent", "."]
    command = [sys.executable, "-m", "mypy", *options]
    environment = {**os.environ, "PYTHONPATH": f"{ours}{os.pathsep}{site_plugin}", "MYPYPATH": ours}
    done = subprocess.run(command, cwd=site_plugin, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
