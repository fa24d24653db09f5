"""What the interceptor `morphline` makes of events; its commands are compared with Kite's in tests/interop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flafka.interceptors.morphline import MorphlineInterceptor, MorphlineInterceptorConfig
from flafka.plugins import Batch, Event


def made(directory: Path, commands: str, **options: str) -> MorphlineInterceptor:
    file = directory / "morphline.conf"
    file.write_text(f'morphlines : [{{ id : m, importCommands : ["org.kitesdk.**"], commands : [{commands}] }}]')
    config, found = MorphlineInterceptorConfig.parse({"morphlineFile": str(file), **options})
    assert config is not None, found
    interceptor = MorphlineInterceptor(config)
    interceptor.open()
    return interceptor


def run(interceptor: MorphlineInterceptor, *events: Event) -> list[Event]:
    return list(interceptor.intercept(Batch.of(events)))


SPLIT = (
    '{ readLine { charset : UTF-8 } }, { split { inputField : message, outputFields : [a, b], separator : "," } },'
    ' { setValues { _attachment_body : "@{message}" } }, { toByteArray { field : _attachment_body } },'
    ' { removeFields { blacklist : ["literal:message"] } }'
)


def test_fields_become_headers_and_the_body_stays_where_it_is(tmp_path: Path) -> None:
    interceptor = made(tmp_path, SPLIT)
    assert run(interceptor, Event("x,é".encode(), {"host": "h"})) == [
        Event("x,é".encode(), {"host": "h", "a": "x", "b": "é"})
    ]
    assert run(made(tmp_path, "{ addValues { n : 1 } }"), Event(b"\xff")) == [Event(b"\xff", {"n": "1"})]
    assert run(made(tmp_path, "{ readJson {} }, { extractJsonPaths { paths { n : /n } } },"
                              ' { removeFields { blacklist : ["regex:_.*"] } }'), Event(b'{"n":1.5}')) == [
        Event(b"", {"n": "1.5"})
    ]  # fmt: skip


def test_what_does_not_come_out_is_dropped(tmp_path: Path) -> None:
    interceptor = made(tmp_path, "{ equals { level : INFO } }")
    assert run(interceptor, Event(b"1", {"level": "INFO"}), Event(b"2", {"level": "DEBUG"}), Event(b"3")) == [
        Event(b"1", {"level": "INFO"})
    ]
    assert interceptor.metrics.snapshot()["MorphlineFailedCount"] == 2
    assert run(made(tmp_path, "{ dropRecord {} }"), Event(b"1")) == []


@pytest.mark.parametrize(
    "commands",
    [
        "{ readLine { charset : UTF-8 } }",
        "{ addValues { two : [1, 2] } }",
        "{ readJson {} }",
        '{ setValues { _attachment_body : "text" } }',
    ],
)
def test_what_an_event_cannot_hold_goes_on_as_it_came(tmp_path: Path, commands: str) -> None:
    event = Event(b"{}\n{}\n", {"a": "b"})
    interceptor = made(tmp_path, commands)
    assert run(interceptor, event) == [event]
    assert interceptor.metrics.snapshot()["MorphlineExceptionCount"] == 1
    assert run(made(tmp_path, commands, isProductionMode="true"), event) == []


def test_solr_is_for_the_sink(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"the sink solr can run commands of Solr"):
        made(tmp_path, '{ loadSolr { solrLocator { solrUrl : "http://h/solr/c" } } }')


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
    assert caution.uninstalled


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
def test_nothing_that_comes_makes_it_raise(tmp_path: Path, body: bytes) -> None:
    commands = (
        '{ readJson {} }, { extractJsonPaths { flatten : false, paths { a : "/a", t : "/t", all : "[]" } } },'
        ' { removeFields { blacklist : ["regex:_.*"] } },'
        " { tryRules { throwExceptionIfAllRulesFailed : false, rules : ["
        "{ commands : [{ convertTimestamp { field : t, inputFormats : [unixTimeInSeconds, yyyy] } }] } ] } }"
    )
    interceptor = made(tmp_path, commands)
    for event in run(interceptor, Event(body)):
        assert event.body in (b"", body)
