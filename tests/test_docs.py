"""The generated documentation is the present one."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugins import Batch, Event, Origin, conformance

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
    """The directory with the files of CONTRIBUTING.md and docs/plugins.md."""
    pages = (DOCS.parent / "CONTRIBUTING.md").read_text() + (DOCS / "plugins.md").read_text()
    directory = tmp_path / "site"
    directory.mkdir()
    for code, name in re.findall(r'```python\n("""(\w+\.py).*?)```', pages, re.S):
        (directory / name).write_text(code)
    names = {path.name for path in directory.iterdir()}
    assert names == {"site_plugin.py", "test_site_plugin.py", "site_sizes.py"}
    return directory


def test_a_source_and_a_sink_with_their_options_have_less_than_25_lines_each(site_plugin):
    lines = (site_plugin / "site_plugin.py").read_text().splitlines()
    classes = [one for one in ast.parse("\n".join(lines)).body if isinstance(one, ast.ClassDef)]
    assert [one.name for one in classes] == ["DatagramsConfig", "DatagramsSource", "LinesConfig", "LinesSink"]
    for config, component in zip(classes[::2], classes[1::2], strict=True):
        written = [*lines[config.lineno - 1 : config.end_lineno], *lines[component.lineno - 1 : component.end_lineno]]
        assert len([line for line in written if line.strip()]) < 25


@given(st.lists(st.builds(Event, st.binary(max_size=3) | st.just(b"#\xff"), st.dictionaries(st.text(), st.text()))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_interceptor_of_the_page_is_the_same_by_column_and_by_event(sizes, events):
    by_event, by_column = (conformance.make(cls, {}) for cls in (sizes.SizesByEvent, sizes.SizesByColumn))
    batch = Batch.of(events, Origin.of_record("t", 0, 7, 0, len(events)))
    one, other = by_event.intercept(batch), by_column.intercept(batch)
    assert (list(one), one.ids()) == (list(other), other.ids())


@pytest.fixture
def sizes(site_plugin, monkeypatch):
    monkeypatch.syspath_prepend(site_plugin)
    monkeypatch.delitem(sys.modules, "site_sizes", raising=False)
    return importlib.import_module("site_sizes")


def test_both_interceptors_of_the_page_pass_the_kit(sizes):
    for cls in (sizes.SizesByEvent, sizes.SizesByColumn):
        conformance.check_interceptor(cls, {}, events=[Event(b"# a comment"), Event(b"#"), Event(b"")])


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
