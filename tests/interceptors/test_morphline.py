"""Interceptor `morphline`; tests/interop compares its commands with Kite's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flafka.interceptors.morphline import MorphlineInterceptor, MorphlineInterceptorConfig
from flafka.plugins import Batch, Event


def make(directory: Path, commands: str, **options: str) -> MorphlineInterceptor:
    file = directory / "morphline.conf"
    file.write_text(f'morphlines : [{{ id : m, importCommands : ["org.kitesdk.**"], commands : [{commands}] }}]')
    config, problems = MorphlineInterceptorConfig.parse({"morphlineFile": str(file), **options})
    assert config is not None, problems
    interceptor = MorphlineInterceptor(config)
    interceptor.open()
    return interceptor


def run(interceptor: MorphlineInterceptor, *events: Event) -> list[Event]:
    return list(interceptor.intercept(Batch.of(events)))


def test_solr_is_for_the_sink(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"commands of Solr: remove this one"):
        make(tmp_path, '{ loadSolr { solrLocator { solrUrl : "http://h/solr/c" } } }')


def test_a_library_that_is_not_installed_is_an_error_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "morphline.conf"
    file.write_text("morphlines : []")
    monkeypatch.setitem(sys.modules, "hocon", None)
    config, problems = MorphlineInterceptorConfig.parse({"morphlineFile": str(file)})
    assert not problems
    assert config is not None
    (caution,) = config.warnings()
    assert caution.message == "needs hocon, which is not installed: pip install 'flafka[morphlines]'"
    assert caution.is_library_missing


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b"[" * 900 + b"1" + b"]" * 900,
        b'{"a":' * 900 + b"1" + b"}" * 900,
        b'{"a":"\\ud800","t":"' + b"9" * 5000 + b'"}',
        b'{"a":' + b"9" * 5000 + b"}",
    ],
)
def test_no_event_makes_it_raise(tmp_path: Path, body: bytes) -> None:
    commands = (
        '{ readJson {} }, { extractJsonPaths { flatten : false, paths { a : "/a", t : "/t", all : "[]" } } },'
        ' { removeFields { blacklist : ["regex:_.*"] } },'
        " { tryRules { throwExceptionIfAllRulesFailed : false, rules : ["
        "{ commands : [{ convertTimestamp { field : t, inputFormats : [unixTimeInSeconds, yyyy] } }] } ] } }"
    )
    interceptor = make(tmp_path, commands)
    for event in run(interceptor, Event(body)):
        assert event.body in (b"", body)
