"""Values of a configuration: results of `${…}`, and secrets, which no message has."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from typing import Any

import pytest

from tests.agent.config_read import agent, read
from tests.agent.test_config_errors import changed


def url(value: str, tmp_path: Path, *lines: str, **more: Any) -> str:
    """Return the sink's url, written so in the file."""
    spec = agent("\n".join((changed(f"9 | a1.sinks.k1.url = {value}"), *lines)), tmp_path, **more)
    config: Any = spec.sinks[0].config
    return config.url


# --- ${…}


def test_values_from_variables_and_files(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("hush\n")
    more: dict[str, Any] = {"environment": {"HOST": "h1", "STAGE": "dev"}, "system": {"port": "80"}}
    lines = "DEV_PATH = /d", "dev_path = /${DEV_PATH}/x"
    for written, value in {
        "${env:HOST}:${sys:port}": "h1:80",
        "${env:NONE:-localhost}": "localhost",
        "${env:NONE:-${env:HOST}}": "h1",
        "${env:NONE:-}": None,
        "${${env:STAGE}_path}": "//d/x",
        "${file:pw}": "hush",
        "a${file:" + str(tmp_path / "pw") + "}b": "ahushb",
        "$${env:HOST} $1 %{x} ${": "${env:HOST} $1 %{x} ${",
        "${a1.sinks.k1.type}": "index",
        "${sys:file.separator}": "/",
        "${ENV:HOST}": "h1",
        "${date:'it is' yy}": "it is " + __import__("datetime").datetime.now().strftime("%y"),
    }.items():
        assert url(written, tmp_path, *lines, **more) == (value or "http://localhost")


def test_the_user_is_the_one_a_jvm_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USER", "LOGNAME"):
        monkeypatch.setenv(name, "/other")
    user = pwd.getpwuid(os.getuid())
    assert url("${sys:user.name}:${sys:user.home}", tmp_path) == f"{user.pw_name}:{user.pw_dir}"
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    assert url("${sys:user.name}:${sys:user.home}", tmp_path) == "/other:/other"


def test_a_property_of_the_agent_may_be_a_variable_and_an_option_stays_one(tmp_path: Path) -> None:
    lines = "a1.base = /data", "a1.monitoring.port = 4000", "a1.sinks.k1.limit = ${a1.monitoring.port}"
    spec = agent("\n".join([changed("9 | a1.sinks.k1.url = ${a1.base}/x"), *lines]), tmp_path)
    assert spec.sinks[0].properties == {"url": "/data/x", "limit": "4000"}
    assert spec.options.model_dump(exclude_defaults=True) == {"monitoring_port": 4000}


def test_a_file_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("${env:HOST}$${x}")
    assert url("${file:pw}", tmp_path) == "${env:HOST}$${x}"


def test_plain_names_come_from_the_environment_where_flume_is_so_configured(tmp_path: Path) -> None:
    java = {"propertiesImplementation": "org.apache.flume.node.EnvVarResolverProperties"}
    assert url("${NC_PORT}", tmp_path, environment={"NC_PORT": "6667"}, system=java) == "6667"


def test_config_filters(tmp_path: Path) -> None:
    lines = (
        "a1.configfilters = e x",
        "a1.configfilters.e.type = env",
        "a1.configfilters.x.type = external",
        "a1.configfilters.x.command = echo it is",
    )
    given = {"environment": {"KEY": "v1"}}
    for written, value in {
        "${e['KEY']}": "v1",
        '-${e["KEY"]}-': "-v1-",
        "${e[KEY]}": "v1",
        "${x['k']}": "it is k",
    }.items():
        assert url(written, tmp_path, *lines, **given) == value


def test_shell_variables_stay_unchanged(tmp_path: Path) -> None:
    for written in (
        "for f in *; do cat $f > ${f%.log}; done",
        "${file%.log} ${f##*/} ${f/a/b} ${f^^} ${f,,} ${#f} ${!f} ${a[@]} ${#a[*]}",
        "${f:0:3} ${f: -3} ${f:?no} ${f:=x}",
        "$(date) `date` ${f%${g#x}}",
    ):
        assert url(written, tmp_path) == written
        assert url("${f%.log}", tmp_path, "f%.log = a property") == "a property"


@pytest.mark.parametrize("option", ["command", "shell", "replaceString"])
def test_a_plain_name_stays_where_it_may_be_a_variable_of_its_own(option: str, tmp_path: Path) -> None:
    lines = changed(f"9 | a1.sinks.k1.{option} = tail ${{FILE}} ${{base}}"), "base = x"
    _, diagnostics = read("\n".join(lines), tmp_path)
    assert not [diagnostic for diagnostic in diagnostics if "has no value" in diagnostic.message]
    _, diagnostics = read(changed(f"9 | a1.sinks.k1.{option} = ${{env:FILE}}"), tmp_path)
    assert [diagnostic for diagnostic in diagnostics if "has no value" in diagnostic.message]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("${env:NONE}", "${env:NONE} has no value: there is no environment variable NONE"),
        ("${sys:none}", "${sys:none} has no value: set it with -Dnone=…"),
        ("${java:version}", "${java:version} has no value: this agent does not run in Java"),
        ("${none}", "${none} has no value: the file has no property 'none'"),
        ("${NC_PORT}", "no property 'NC_PORT'; for an environment variable write ${env:NC_PORT}, or start with -D"),
        ("${SELF}", "no property 'SELF'; for an environment variable write ${env:SELF}, or start with -D"),
        ("${}", "${} has no value: the file has no property ''"),
        ("${f9['K']}", "${f9['K']} has no value: no config filter has this name"),
        ("${e['K']}", "${e['K']} has no value: config filter e has no K"),
        ("${x['K']}", "${x['K']} has no value: the command 'false' fails (CalledProcessError)"),
        ("${bad['K']}", "${bad['K']} has no value: its config filter cannot be used"),
        ("${file:none}", "${file:none} has no value: 'none' cannot be read: No such file or directory"),
        ("${file:.}", "${file:.} has no value: '.' cannot be read: Is a directory"),
        ("${date:qq}", "${date:qq} has no value: 'qq' is not supported in dates; supported are "),
        (
            "${a1.sinks.k1.url}",
            "${a1.sinks.k1.url} has no value: it refers to itself: a1.sinks.k1.url → a1.sinks.k1.url",
        ),
        ("${env:SELF}", "more than 50 expressions are nested"),
        ("${" * 60 + "}" * 60, "more than 50 expressions are nested"),
        ("${a_${env:INNER}}", "${env:INNER} has no value: there is no environment variable INNER"),
    ],
)
def test_a_variable_without_a_value_is_an_error(value: str, reason: str, tmp_path: Path) -> None:
    lines = [
        "a1.configfilters = e x bad",
        "a1.configfilters.e.type = env",
        "a1.configfilters.x.type = external",
        "a1.configfilters.x.command = false",
        "a1.configfilters.bad.type = hadoop",
    ]
    text = "\n".join([changed(f"9 | a1.sinks.k1.url = {value}"), *lines])
    spec, diagnostics = read(text, tmp_path, environment={"SELF": "${env:SELF}"})
    assert spec is None
    errors = [str(d).removeprefix(f"{tmp_path}/") for d in diagnostics if d.place.line == 9]
    assert len(errors) == 1
    assert errors[0].startswith("agent.conf:9: a1.sinks.k1: ")
    assert reason in errors[0]


def test_properties_with_circular_references_are_an_error(tmp_path: Path) -> None:
    _, diagnostics = read("\n".join([changed("9 | a1.sinks.k1.url = ${b}"), "b = ${c}", "c = ${b}"]), tmp_path)
    assert [str(d).removeprefix(f"{tmp_path}/") for d in diagnostics] == [
        "agent.conf:11: c: ${b} has no value: it refers to itself: b → c → b"
    ]


def test_a_few_lines_cannot_fill_the_memory(tmp_path: Path) -> None:
    bomb = ["p0 = " + "x" * 1000, *(f"p{n} = " + f"${{p{n - 1}}}" * 10 for n in range(1, 40))]
    _, diagnostics = read("\n".join([changed("9 | a1.sinks.k1.url = ${p39}"), *bomb]), tmp_path)
    assert any("the value would be larger than 1 MiB" in diagnostic.message for diagnostic in diagnostics)


# --- secrets


@pytest.mark.parametrize(
    "lines",
    [
        ["a1.sinks.k1.limit = ${file:pw}"],
        ["a1.sinks.k1.limit = x${file:pw}y"],
        ["a1.sinks.k1.limit = ${indirect}", "indirect = ${file:pw}"],
        ["a1.sinks.k1.type = ${file:pw}"],
        ["a1.sinks.k1.channel = ${file:pw}"],
        ["a1.sinks.k1.runner = ${file:pw}"],
        ["a1.runner = ${file:pw}"],
        ["a1.sinks = k1 ${file:pw}"],
        ["a1.sources.s1.selector.type = ${file:pw}"],
        ["a1.sinks.k1.url = ${${file:pw}}"],
        ["a1.sinks.k1.url = ${env:${file:pw}}"],
        ["a1.sinks.k1.credential = Tr0ub4dor3", "a1.sinks.k1.limit = Tr0ub4dor3"],
        ["a1.sinks.k1.somePassword = Tr0ub4dor3", "a1.sinks.k1.limit = Tr0ub4dor3"],
        ["a1.sinks.k1.limit = ${e['PW']}", "a1.configfilters = e", "a1.configfilters.e.type = env"],
    ],
)
def test_secrets_are_never_shown(lines: list[str], tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("Tr0ub4dor3\n")
    text = "\n".join([changed(), *lines])
    for mode in ("normal", "strict"):
        _, diagnostics = read(text, tmp_path, mode=mode, environment={"PW": "Tr0ub4dor3"})
        assert diagnostics
        assert "tr0ub4dor3" not in repr(diagnostics).lower()


def test_a_short_secret_is_hidden_as_a_word(tmp_path: Path) -> None:
    _, diagnostics = read(changed("9 | a1.sinks.k1.credential = e"), tmp_path)
    assert [d.message for d in diagnostics] == ["credential must have a length of at least 8"]
    (tmp_path / "pw").write_text("s e")
    _, diagnostics = read(changed("9 | a1.sinks.k1.limit = ${file:pw}"), tmp_path)
    assert [d.message for d in diagnostics] == ["limit must be a whole number, not '${file:pw}'"]
