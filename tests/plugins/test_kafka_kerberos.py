"""Kerberos of Kafka's clients: logins, messages, and the script that builds a client with GSSAPI."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flafka.agent.config.kafka import several_logins
from flafka.agent.runner.agent import Agent
from flafka.agent.runner.kafkalogin import refuse_other_login
from flafka.agent.services.running import until
from flafka.agent.topology import AgentSpec, ComponentSpec, ConfigLocation, SinkSpec
from flafka.plugins import FlafkaError, Retry
from flafka.plugins.kafka import kerberos
from flafka.plugins.kafka.kerberos import (
    explain_refusal,
    host_errors,
    log_in,
    login_errors,
    login_problems,
    provider_hint,
    without_kinit,
)
from flafka.plugins.kafka.properties import client_properties
from flafka.plugins.net.gssapi import KerberosError
from flafka.plugins.problems import Problem
from flafka.sinks.kafka import KafkaSink, KafkaSinkConfig
from tests.plugins.keytabs import write_keytab

SCRIPT = Path(__file__).parents[2] / "conf" / "kafka-gssapi.sh"
FLAFKA = "flafka@EXAMPLE.COM"
GSSAPI = {"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI"}
FAILED = "Failed to initialize SASL authentication: SASL handshake failed (start (-1)): SASL(-1): generic failure: "
KINIT = "sasl.kerberos.kinit.cmd"


@pytest.fixture
def login(tmp_path: Path) -> dict[str, str]:
    keytab = write_keytab(tmp_path / "flafka.keytab", {FLAFKA: 2})
    return {**GSSAPI, "sasl.kerberos.principal": FLAFKA, "sasl.kerberos.keytab": str(keytab)}


def test_librdkafka_runs_kinit_only_if_the_configuration_names_it(login: dict[str, str]) -> None:
    never = {"sasl.kerberos.min.time.before.relogin": 0}
    assert client_properties(login, stores=False) == login | never
    assert client_properties(login | {KINIT: "k5start"}, stores=False) == login | {KINIT: "k5start"}
    assert client_properties(login | {KINIT: "/usr/bin/kinit"}, stores=False).items() >= never.items(), "as of Java"
    assert without_kinit(login | {KINIT: "k5start"}) == login | {KINIT: "k5start"} | never
    assert client_properties({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}).keys().isdisjoint(never)
    jaas = f'com.sun…Krb5LoginModule required useKeyTab=true keyTab="/k" principal="{FLAFKA}";'
    assert kerberos.find_login(client_properties({**GSSAPI, "sasl.jaas.config": jaas}, stores=False)) == (
        FLAFKA,
        "/k",
        None,
    )


def test_what_keeps_a_client_from_every_login_is_an_error(
    login: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_has_provider", "_has_sasl_module"):
        monkeypatch.setattr(kerberos, name, lambda: True)
    assert [*login_errors(login), *host_errors(login)] == []
    assert list(login_errors({"security.protocol": "SSL"})) == []
    [(names, text)] = login_errors({**GSSAPI, "sasl.kerberos.keytab": "/k"})
    assert names[0] == "sasl.kerberos.keytab"
    assert text == "sasl.kerberos.principal must be set as well"
    [(names, text)] = host_errors(login | {KINIT: "no-such-kinit -R"})
    assert names == (KINIT,)
    assert text.startswith("there is no no-such-kinit, so that no ticket is got: remove sasl.kerberos.kinit.cmd, as")
    assert list(host_errors(login | {KINIT: "true"})) == []
    assert list(host_errors(login | {KINIT: "X=1 no-such-kinit"})) == []  # what a shell makes of it is not known
    monkeypatch.setattr(kerberos, "_has_sasl_module", lambda: False)
    [(names, text)] = host_errors(login)
    assert "sasl.mechanism" in names
    assert "install libsasl2-modules-gssapi-mit (Debian)" in text


@pytest.mark.parametrize("named", ["sasl.mechanism", "security.protocol"])
def test_a_client_without_gssapi_is_a_lack_of_this_host_and_names_the_script(
    named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kerberos, "_has_provider", lambda: False)
    options = {"kafka.topic": "t", "kafka.bootstrap.servers": "h:1"}
    options |= {f"kafka.producer.{name}": GSSAPI[name] for name in {"security.protocol", named}}
    config, problems = KafkaSinkConfig.parse(options)
    assert config is not None, problems
    [problem] = config.warnings()
    assert problem.option == f"kafka.producer.{named}"
    assert problem.is_library_missing
    assert problem.message == f"cannot be used on this host: {provider_hint()}"
    assert f"`bash {SCRIPT} {sys.prefix}`" in problem.message


def test_a_keytab_that_cannot_be_used_is_warned_of(login: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def warnings(**changes: str) -> list[Problem]:
        client = login | {f"sasl.kerberos.{name}": value for name, value in changes.items()}
        return list(login_problems("p.", client, client))

    for name in ("_has_provider", "_has_sasl_module"):
        monkeypatch.setattr(kerberos, name, lambda: True)
    assert warnings() == []
    assert warnings(principal="flafka") == []
    [other] = warnings(principal="alice@EXAMPLE.COM")
    assert other.option == "p.sasl.kerberos.keytab"
    assert other.message.endswith(f"has no key of alice@EXAMPLE.COM, only of {FLAFKA}")
    [missing] = warnings(keytab="/none")
    assert missing.message == "cannot be used now: the keytab /none cannot be read: No such file or directory"
    assert warnings(keytab=f"FILE:{login['sasl.kerberos.keytab']}") == []
    assert warnings(keytab="MEMORY:none") == []
    [missing] = warnings(keytab="FILE:/none")
    assert missing.message.startswith("cannot be used now: the keytab FILE:/none cannot be read: No such file")
    [unused] = warnings(keytab="")
    assert unused.option == "p.sasl.kerberos.principal"
    assert "has no effect without sasl.kerberos.keytab" in unused.message


@pytest.mark.parametrize(
    ("error", "changes", "said"),
    [
        (
            f"{FAILED}GSSAPI Error: No credentials were supplied, or the credentials were unavailable "
            "or inaccessible (Client's credentials have been revoked)",
            {},
            f"no Kerberos ticket for {FLAFKA}: Client's credentials have been revoked; test it with: kinit -kt ",
        ),
        (
            f"{FAILED}GSSAPI Error: Unspecified GSS failure.  Minor code may provide more information (Server "
            "kafka/127.0.0.1@EXAMPLE.COM not found in Kerberos database)",
            {},
            "the KDC has no service kafka/127.0.0.1@EXAMPLE.COM: name the brokers as their principals do, ",
        ),
        (
            f"{FAILED}GSSAPI Error: No credentials were supplied (No Kerberos credentials available (default cache: "
            "FILE:/tmp/krb5cc_0))",
            {"sasl.kerberos.keytab": ""},
            "no Kerberos ticket for this client: No Kerberos credentials available (default cache: "
            "FILE:/tmp/krb5cc_0); run kinit, or set",
        ),
        (
            f"{FAILED}GSSAPI Error: No credentials were supplied (No Kerberos credentials available)",
            {KINIT: "no-such-kinit"},
            "no Kerberos ticket, as there is no no-such-kinit: remove sasl.kerberos.kinit.cmd",
        ),
        (
            f"{FAILED}GSSAPI Error: x (y)",
            {"sasl.kerberos.keytab": "/none"},
            "the keytab /none cannot be read: No such",
        ),
        ("SASL handshake failed: No worthy mechs found", {}, "libsasl2 has no module for GSSAPI on this host"),
        (
            "SASL authentication error: Authentication failed during authentication due to invalid credentials",
            {},
            f"it refuses the ticket of {FLAFKA}: is the broker's keytab up to date? (Authentication failed",
        ),
    ],
)
def test_a_failed_login_says_why_and_the_way_out(
    login: dict[str, str], error: str, changes: dict[str, str], said: str
) -> None:
    assert explain_refusal(error, login | changes).startswith(said)


def test_the_cause_of_an_expired_ticket_is_found_without_blocking(
    login: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = threading.Event()

    attempts: list[object] = []

    class Away:
        def __init__(self, *_: object) -> None:
            attempts.append(self)
            assert answer.wait(60)
            raise KerberosError("Cannot contact any KDC")

    monkeypatch.setattr(kerberos, "Credential", Away)
    monkeypatch.setattr(kerberos, "_causes", {})
    expired = f"{FAILED}GSSAPI Error: No credentials were supplied (Ticket expired)"
    assert explain_refusal(expired, login).startswith(f"no Kerberos ticket for {FLAFKA}: Ticket expired; test it")
    answer.set()
    cause = "the last one has expired, and there is no new one: Cannot contact any KDC; test it with"
    until(lambda: cause in explain_refusal(expired, login))
    assert cause in explain_refusal(expired, login)
    assert len(attempts) == 1, "each may lock the principal"
    monkeypatch.setattr(kerberos, "CAUSE_SECONDS", 0.0)
    explain_refusal(expired, login)
    until(lambda: len(attempts) == 2)


def test_a_reload_cannot_change_the_login(login: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    def agent(**changes: str) -> AgentSpec:
        config = KafkaSinkConfig.model_construct(producer={**login, **changes})
        sink = SinkSpec("k", "a1.sinks.k", KafkaSink, config, {}, ConfigLocation("a.conf", 1), channel="c")
        return AgentSpec("a1", "a.conf", (), (), (sink,))

    monkeypatch.setattr(kerberos, "_current_login", None)
    plain, tickets = {"sasl.mechanism": "PLAIN"}, {"sasl.kerberos.keytab": ""}
    for old, new in (({}, {}), ({}, plain), (plain, tickets)):
        refuse_other_login(agent(**old), agent(**new))
    for old, new, changes in (
        (plain, {}, f"from none to {FLAFKA} by "),
        ({}, tickets, f"from {FLAFKA} by {login['sasl.kerberos.keytab']} to the user's ticket cache, and a process"),
    ):
        running = object.__new__(Agent)  # nothing of it has started
        running.spec = agent(**old)
        with pytest.raises(FlafkaError, match=f"login to Kafka changes {changes}"):
            running.reload(agent(**new))


def test_a_process_has_one_login(login: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []
    monkeypatch.setattr(kerberos, "_current_login", None)
    monkeypatch.setattr(kerberos, "log_in_process", lambda *names: made.append(names))
    log_in({"security.protocol": "SSL"})
    log_in(login)
    log_in(login)
    assert made == [(FLAFKA, login["sasl.kerberos.keytab"])]
    with pytest.raises(Retry, match=r"uses flafka@EXAMPLE.COM by .*, and not the user's ticket cache: restart the a"):
        log_in(GSSAPI)


def test_two_logins_in_a_configuration_are_an_error(login: dict[str, str]) -> None:
    def sink(name: str, **changes: str) -> ComponentSpec:
        config = KafkaSinkConfig.model_construct(producer={**login, **changes})
        return ComponentSpec(name, f"a1.sinks.{name}", KafkaSink, config, {}, ConfigLocation("a.conf", 1))

    first, other = sink("k1"), sink("k3", **{"sasl.kerberos.principal": "alice@EXAMPLE.COM"})
    plain = sink("k0", **{"sasl.mechanism": "PLAIN"})
    assert list(several_logins([plain, first, sink("k2")])) == []
    keytab = login["sasl.kerberos.keytab"]
    assert list(several_logins([plain, first, other])) == [
        (
            other,
            "kafka.producer.*: Kafka's clients of one agent have one Kerberos login, and this is alice@EXAMPLE.COM "
            f"by {keytab}, that of a1.sinks.k1 {FLAFKA} by {keytab}: use the same principal and keytab, or another "
            "agent",
        )
    ]


PROGRAM = """
import ctypes, os, subprocess
from flafka.plugins.net.gssapi import Credential, KerberosError, log_in_process

log_in_process("flafka@EXAMPLE.COM", "/none.keytab")
read = ctypes.CDLL(None).getenv
read.restype = ctypes.c_char_p
print(read(b"KRB5CCNAME").decode().partition(":")[0], read(b"KRB5_CLIENT_KTNAME").decode())
print(os.environ["KRB5CCNAME"])
print(subprocess.check_output(["printenv", "KRB5CCNAME"], env=os.environ, text=True), end="")
try:
    Credential()
except KerberosError as e:
    print(e)
"""


def test_the_login_of_kafka_leaves_the_users_tickets_to_hdfs_and_to_commands(tmp_path: Path) -> None:
    settings, cache = tmp_path / "krb5.conf", f"FILE:{tmp_path / 'tickets'}"
    settings.write_text("[libdefaults]\n default_realm = EXAMPLE.COM\n")
    environment = {**os.environ, "KRB5_CONFIG": str(settings), "KRB5CCNAME": cache}
    environment.pop("KRB5_CLIENT_KTNAME", None)
    lines = subprocess.check_output([sys.executable, "-c", PROGRAM], env=environment, text=True).splitlines()
    assert lines[:3] == ["MEMORY /none.keytab", cache, cache]
    assert "credential" in lines[3].lower()
    assert "MEMORY" not in lines[3]
    assert not (tmp_path / "tickets").exists()


def test_the_script_names_everything_that_is_missing(tmp_path: Path) -> None:
    environment, programs = tmp_path / "venv", tmp_path / "programs"
    (environment / "bin").mkdir(parents=True)
    programs.mkdir()
    for program, result in ((environment / "bin" / "python", "echo /include"), (programs / "cc", "exit 1")):
        program.write_text(f"#!/bin/sh\n{result}\n")
        program.chmod(0o755)
    for name in ("dirname", "basename"):
        (programs / name).symlink_to(f"/usr/bin/{name}")

    def run(*arguments: object) -> str:
        command = ["/bin/bash", str(SCRIPT), *map(str, arguments)]
        result = subprocess.run(command, env={"PATH": str(programs)}, capture_output=True, text=True, check=False)
        assert result.returncode == 1
        return result.stderr

    assert "usage: bash " in run()
    assert "is no virtual environment" in run(tmp_path)
    assert "there is no /none" in run(environment, "/none")
    missing = run(environment)
    programs_and_headers = ("program make", "program curl", "program tar", "curl/curl.h", "zstd.h", "Python.h")
    for name in (*programs_and_headers, "sasl/sasl.h (libsasl2-dev on Debian"):
        assert name in missing
    with_source = run(environment, programs)
    assert not re.search("program (curl|tar)", with_source)
    packages = SCRIPT.read_text().partition("set -euo pipefail")[0]
    for name in re.findall(r"[a-z\d.-]+-dev(?:el)?", missing):
        assert name in packages
