"""Pages: generated ones are up to date, links lead somewhere, the site is built without a warning."""

import ast
import importlib
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flafka.plugins import Batch, Event, Origin, conformance
from tests.docs.blocks import PAGES, ROOT

DOCS = ROOT / "docs"
ELSEWHERE = re.compile(
    r"""(?:<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?|@import |url\(["']?)(?:https?:)?//"""
)
"""Elements that a browser would load from a network."""


pytestmark = pytest.mark.filterwarnings("ignore:'myst_parser.* is deprecated")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def build() -> ModuleType:
    return script("build")


@pytest.fixture(scope="module")
def wrap() -> ModuleType:
    return script("wrap")


def test_no_line_of_a_page_is_too_long(wrap: ModuleType) -> None:
    for page in wrap.pages():
        text = page.read_text("utf-8")
        assert text == wrap.wrap(text), f"{page.name}: ./dev fmt"


def test_wrapping_does_not_change_the_text(wrap: ModuleType) -> None:
    long = ("one `agent replay --sink k` of " * 6).strip()
    for text in (f"# {long}", f"| {long}", f"```\n{long}\n```", f"    {long}", f"[a]: {long}", "short\n- x", ""):
        assert wrap.wrap(f"{text}\n") == f"{text}\n"
    for text in (long, f"- {long}\n  and {long}", f"  12. {long}\n- {long}", f"{long}\n{long}\n\n{long}"):
        made = wrap.wrap(f"{text}\n")
        assert max(map(len, made.splitlines())) <= wrap.WIDTH
        assert made.split() == text.split()
        assert "--sink\nk" not in made
        assert [line.strip() for line in made.splitlines() if not line.strip()] == [""] * text.count("\n\n")
        assert wrap.wrap(made) == made
    item = wrap.wrap(f"- {long}\n").splitlines()
    assert [line[:2] for line in item] == ["- ", *["  "] * (len(item) - 1)]
    hostile = "word " * 23 + "- 12. # |" * 9  # at the beginning of a line it would be an item, a heading, a table
    assert wrap.wrap(f"{hostile}\n") == f"{hostile}\n"


def test_generated_pages_are_up_to_date(build: ModuleType) -> None:
    there = {page.name: page.read_text("utf-8") for page in (DOCS / "reference").glob("*.md")}
    assert there == build.reference_pages(), "run ./dev docs"
    for page, made in build.FILLED_PAGES.items():
        text = page.read_text("utf-8")
        assert text == build.fill_tables(text, made()), "run ./dev docs"


def test_each_sample_is_one_of_a_component(build: ModuleType) -> None:
    shown = "".join(build.reference_pages().values())
    for sample in (DOCS / "samples").iterdir():
        assert sample.read_text("utf-8").strip() in shown, f"{sample.name} is of no component"


@pytest.mark.usefixtures("lengthy")
def test_the_site_is_built_without_a_warning_and_needs_no_network(build: ModuleType, tmp_path: Path) -> None:
    """Sphinx warns of dead links, missing anchors, and pages that are not in the navigation."""
    assert build.build_site(tmp_path) == ""
    made = {path.relative_to(tmp_path).with_suffix("").as_posix() for path in tmp_path.rglob("*.html")}
    assert made >= {page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")}
    for file in tmp_path.rglob("*"):
        if file.suffix in (".html", ".css"):
            assert not (reference := ELSEWHERE.search(file.read_text("utf-8"))), f"{file.name}: {reference}"


def test_a_dead_link_and_an_unlisted_page_are_errors_of_the_site(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    (docs / "conf.py").write_text((DOCS / "conf.py").read_text())
    (docs / "static").symlink_to(DOCS / "static")
    links = "[a](nowhere.md)", "[a](listed.md#no-heading)", "[a](#no-anchor)", "![a](no-picture.svg)"
    (docs / "index.md").write_text("\n".join(["# Index", *links, "## Pages", "", "- [Listed](listed.md)"]))
    (docs / "listed.md").write_text("# Listed\n")
    (docs / "unlisted.md").write_text("# Not listed\n")
    monkeypatch.setattr(build, "DOCS", docs)
    warnings = build.build_site(tmp_path / "site").splitlines()
    for wrong in ("nowhere.md", "no-heading", "no-anchor", "no-picture.svg", "unlisted.md: WARNING: document isn't"):
        assert any(wrong in warning for warning in warnings), wrong
    assert len(warnings) == 5, warnings


def test_links_of_pages_outside_the_site_lead_somewhere() -> None:
    """Links of the site's own pages included, as they are read without it."""
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:|<)([^)#]*)(?:#([^)]+))?\)", page.read_text("utf-8")):
            there = page.parent / target if target else page
            assert there.exists(), f"{page.name}: {target}"
            if anchor:
                assert anchor in anchors(there), f"{page.name}: {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors of headings as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_files_that_messages_name_exist() -> None:
    for folder in ("agent", "plugins", "sources", "channels", "interceptors", "sinks", "conf"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in (".py", ".conf", ".yml", ".xml", ".js", ".html", ".service"):
                for named in re.findall(r"\bdocs/[\w/-]+\.md", file.read_text("utf-8")):
                    assert (ROOT / named).exists(), f"{file.relative_to(ROOT)}: {named}"


@pytest.fixture
def site_plugin(tmp_path):
    """The directory with the files of CONTRIBUTING.md and docs/writing-plugins.md."""
    pages = (ROOT / "CONTRIBUTING.md").read_text() + (DOCS / "writing-plugins.md").read_text()
    directory = tmp_path / "site"
    directory.mkdir()
    for code, name in re.findall(r'```python\n("""(\w+\.py).*?)```', pages, re.S):
        (directory / name).write_text(code)
    names = {path.name for path in directory.iterdir()}
    assert names == {"site_plugin.py", "test_site_plugin.py", "site_sizes.py", "tank.py"}
    return directory


def test_a_source_and_a_sink_with_their_options_have_less_than_25_lines_each(site_plugin):
    lines = (site_plugin / "site_plugin.py").read_text().splitlines()
    classes = [node for node in ast.parse("\n".join(lines)).body if isinstance(node, ast.ClassDef)]
    assert [cls.name for cls in classes] == ["DatagramsConfig", "DatagramsSource", "LinesConfig", "LinesSink"]
    for config, component in zip(classes[::2], classes[1::2], strict=True):
        written = [*lines[config.lineno - 1 : config.end_lineno], *lines[component.lineno - 1 : component.end_lineno]]
        assert len([line for line in written if line.strip()]) < 25


@given(st.lists(st.builds(Event, st.binary(max_size=3) | st.just(b"#\xff"), st.dictionaries(st.text(), st.text()))))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_interceptor_of_the_page_is_the_same_by_column_and_by_event(sizes, events):
    by_event, by_column = (conformance.make(cls, {}) for cls in (sizes.SizesByEvent, sizes.SizesByColumn))
    batch = Batch.of(events, Origin.of_record("t", 0, 7, 0, len(events)))
    expected, result = by_event.intercept(batch), by_column.intercept(batch)
    assert (list(expected), expected.ids()) == (list(result), result.ids())


@pytest.fixture
def sizes(site_plugin, monkeypatch):
    monkeypatch.syspath_prepend(site_plugin)
    monkeypatch.delitem(sys.modules, "site_sizes", raising=False)
    return importlib.import_module("site_sizes")


def test_both_interceptors_of_the_page_pass_the_kit(sizes):
    for cls in (sizes.SizesByEvent, sizes.SizesByColumn):
        conformance.check_interceptor(cls, {}, events=[Event(b"# a comment"), Event(b"#"), Event(b"")])


def test_the_source_of_the_page_counts_what_it_declares(site_plugin, monkeypatch):
    monkeypatch.syspath_prepend(site_plugin)
    monkeypatch.delitem(sys.modules, "tank", raising=False)
    source = conformance.make(importlib.import_module("tank").TankSource, {})
    next(source.batches())
    assert source.metrics.snapshot() == {"ReadingCount": 1, "LevelLitres": 12.5}
    assert source.metrics.gauges() == {metric.name for metric in source.declared_metrics if metric.kind == "gauge"}
    assert source.metrics.snapshot().keys() == {metric.name for metric in source.declared_metrics}


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
    root = str(ROOT)
    cache = f"--cache-dir={pytestconfig.cache.mkdir('mypy')}"
    options = ["--strict", cache, "--config-file", os.devnull, "--follow-imports=silent", "."]
    command = [sys.executable, "-m", "mypy", *options]
    environment = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{site_plugin}", "MYPYPATH": root}
    done = subprocess.run(command, cwd=site_plugin, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
