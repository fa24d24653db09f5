"""Sink `hdfs` at a secured HDFS: TLS, permissions, several HttpFS."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import requests
from pydantic import SecretStr

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services.kdc import REALM, Kdc
from flafka.agent.services.running import RunningAgent, until
from flafka.plugins import Batch, Event, OffsetRange, Origin, Retry
from flafka.sinks.hdfs import HdfsConfig, HdfsSink
from flafka.sinks.hdfs.delegation import Login
from flafka.sinks.hdfs.namenodes import DataNodeAway
from flafka.sinks.hdfs.trust import DEFAULT_TLS, TlsFailure, TlsSettings
from flafka.sinks.hdfs.webhdfs import WebHdfs
from tests.fixtures.httpfs import HttpFs
from tests.fixtures.kerberos import TOKEN_SECONDS, SecureHdfs
from tests.fixtures.relay import relayed
from tests.fixtures.servers import of_this_run
from tests.fixtures.tlshdfs import TlsHdfs
from tests.system.running import unique
from tests.system.test_hdfs_sink import ASSIGNMENT

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("kerberos")]
FLAFKA = f"flafka@{REALM}"
Connect = Callable[..., WebHdfs]


@pytest.fixture
def connect(kdc: Kdc) -> Iterator[Connect]:
    """Function that returns a client of these servers, with a login of `flafka`."""
    with contextlib.ExitStack() as stack:

        def connect(address: str, scheme: str = "http", tls: TlsSettings = DEFAULT_TLS, **login: str) -> WebHdfs:
            client = WebHdfs(
                address.split(","),
                scheme=scheme,
                user=None,
                timeout=30,
                threads=2,
                stopping=threading.Event(),
                login=Login(**{"principal": FLAFKA, "keytab": str(kdc.keytab("flafka")), **login}),
                tls=tls,
            )
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def tls_hdfs(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsHdfs]:
    directory = tmp_path_factory.mktemp("tls hdfs")
    with of_this_run(TlsHdfs(directory, kdc=kdc, token_seconds=TOKEN_SECONDS, fixed_ports=False)) as cluster:
        yield cluster


@pytest.fixture
def path(secure_hdfs: SecureHdfs) -> str:
    """Directory of the user `flafka`."""
    path = f"/{unique('secured')}"
    secure_hdfs.create_directory(path, "flafka")
    return path


def test_files_are_written_over_tls_and_a_new_certificate_needs_no_restart(
    kdc: Kdc, tls_hdfs: TlsHdfs, connect: Connect, tmp_path: Path
) -> None:
    truststore = tmp_path / "authorities.p12"

    def trust() -> None:
        truststore.write_bytes(tls_hdfs.authority.with_name("server.p12").read_bytes())

    trust()
    settings = TlsSettings(str(truststore), SecretStr("changeit"))

    def client(settings: TlsSettings = settings) -> WebHdfs:
        superuser = {"principal": f"nn/localhost@{REALM}", "keytab": str(kdc.service_keytab)}
        return connect(tls_hdfs.webhdfs, "https", settings, **superuser)

    by_any_name = settings._replace(check_hostname=False)
    first = client(by_any_name)
    file = first.upload("/tmp/first", b"1")
    assert first.read(file) == client().read(file) == b"1"
    with pytest.raises(TlsFailure, match=r"self-signed.*; hdfs.truststore must be .*, and it is not set"):
        client(DEFAULT_TLS).status("/")
    with pytest.raises(Retry, match=f"cannot use the truststore {truststore}: the password is wrong"):
        client(TlsSettings(str(truststore), SecretStr("wrong"))).status("/")

    def refusal(settings: TlsSettings = settings) -> str:
        try:
            client(settings).status("/")
        except Retry as e:
            return str(e)
        return ""

    tls_hdfs.show("second", "subjectAltName=DNS:elsewhere")
    until(lambda: refusal(), "the servers to show the new certificate")
    for tried in (settings, by_any_name):
        assert f"must be a file with the certificate's authority, and {truststore} does not have it" in refusal(tried)
    trust()
    assert "name the server as its certificate does, or set hdfs.checkHostname = false" in refusal()

    def works() -> bool:
        with contextlib.suppress(TlsFailure, DataNodeAway):  # the DataNode may still show the old certificate
            return first.read(first.upload(f"/tmp/{unique('again')}", b"2")) == b"2"
        return False

    until(works, "a client that has read the old truststore")


def test_several_httpfs_behind_one_address_are_used_without_tokens(
    secure_hdfs: SecureHdfs,
    httpfs: HttpFs,
    path: str,
    connect: Connect,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """HttpFS servers do not know each other's tokens, and these have no secret in common."""
    secure_hdfs.create_directory(f"{path}/alice", "alice")
    with (
        of_this_run(HttpFs(tmp_path / "another httpfs", secure_hdfs, TOKEN_SECONDS)) as another,
        relayed(httpfs.address, another.address) as relay,
    ):
        client = connect(relay.address)
        written: list[str] = []

        def write(number: int) -> bool:
            try:
                written.append(client.upload(f"{path}/{number}-{len(written)}", b"%d" % number))
            except Retry:
                return False
            return True

        for number in range(10):
            until(lambda number=number: write(number), "an upload")
        assert caplog.text.count("refuses its newest tokens, as several HttpFS behind one address do: for 600 s") == 1
        before = len(relay.targets)
        assert [client.read(file) for file in written] == [b"%d" % number for number in range(10)]
        assert not [target for target in relay.targets[before:] if "delegation" in target.lower()]
        as_alice = connect(relay.address, proxy_user="alice")
        as_alice._namenodes.log_in()
        as_alice._namenodes._tokens.use_tickets("test")
        file = as_alice.upload(f"{path}/alice/a", b"1")
        assert secure_hdfs.files(f"{path}/alice") == {file.rpartition("/")[2]: "alice"}


def test_a_refusal_of_a_web_server_is_shown_and_a_login_at_a_redirect_is_answered(
    secure_hdfs: SecureHdfs, path: str, connect: Connect
) -> None:
    with relayed(secure_hdfs.webhdfs) as relay:
        page = "<html><title>Error 403 GSSException: Checksum\n failed</title></html>"
        relay.replace = lambda op: (403, page) if op == "CREATE data" else None
        client = connect(relay.address)
        with pytest.raises(
            Retry,
            match=f"cannot write {path}/a-0: {relay.address} answers with status 403: Error 403 GSSException: Ch",
        ):
            client.upload(f"{path}/a", b"1")
        refused = iter([(401, ""), (401, "")])
        relay.replace = lambda op: next(refused, None) if op == "CREATE data" else None
        assert client.upload(f"{path}/b", b"2") == f"{path}/b-2"  # two tokens were refused
        client._namenodes._tokens.use_tickets("test")
        refused = iter([(401, "")])
        file = client.upload(f"{path}/c", b"3")
        assert file == f"{path}/c-0"
        assert client.read(file) == b"3"
        relay.replace = lambda op: (401, "")
        with pytest.raises(
            Retry, match=f"{relay.address} requires a login, and takes neither a delegation token nor"
        ):
            client.status(path)


# --- permissions

NEEDED = {
    "the parent of the path": ("", "", "755", "create the directory {path}/logs/.flafka"),
    "the path": ("/logs", "", "755", "create the directory {path}/logs/.flafka"),
    "the directories above the path": ("", "/logs", "700", "read the status of {path}/logs"),
    "the private directory": ("/logs/.flafka", "", "700", "list {path}/logs/.flafka/chain/"),
    "the commit logs": ("/logs/.flafka/chain", "", "755", "create the directory {path}/logs/.flafka/chain/"),
    "the uploads": ("/logs/.flafka/tmp", "", "755", "write {path}/logs/.flafka/tmp/"),
    "the directory of an event": ("/logs/a", "", "755", "no file can be renamed into {path}/logs/a .*"),
    "the directories above an event's": ("/logs/a", "", "555", "no file can be renamed into {path}/logs/a .*"),
}
"""By the missing right: the superuser's directory, a directory of the user's in it, mode of the first, failure."""


@pytest.mark.parametrize("missing", NEEDED)
def test_without_a_right_on_hdfs_the_error_tells_how_to_grant_it(
    kdc: Kdc, secure_hdfs: SecureHdfs, path: str, tmp_path: Path, missing: str
) -> None:
    directory, below, mode, failure = NEEDED[missing]
    above = f"{path}{directory}".rpartition("/")[0] if directory else ""
    if above:
        secure_hdfs.create_directory(above, "flafka")
    if below:
        secure_hdfs.create_directory(f"{path}{directory}{below}", "flafka")
    secure_hdfs.create_directory(f"{path}{directory}", "hdfs")
    assert secure_hdfs.superuser_request("PUT", f"{path}{directory}", "SETPERMISSION", permission=mode).ok
    sink = HdfsSink(config(kdc, secure_hdfs, f"{path}/logs/%{{app}}", tmp_path))
    refusals: list[str] = []
    for _ in range(5):
        try:
            deliver(sink)
            break
        except Retry as e:
            refusals.append(str(e))
            grant(secure_hdfs, refusals[-1])
        finally:
            sink.close()
    assert secure_hdfs.lines(f"{path}/logs/a") == ["1"], refusals
    pattern = f"{failure.format(path=path)}.*Permission denied: user=flafka, access=[A-Z_]+, inode="
    assert re.search(pattern, refusals[0]), refusals
    assert f"HDFS does not let user '{FLAFKA}'" in refusals[0] or "no file can be renamed" in refusals[0]


def config(kdc: Kdc, hdfs: SecureHdfs, path: str, staging: Path) -> HdfsConfig:
    options = {
        "hdfs.path": f"webhdfs://{hdfs.webhdfs}{path}",
        "hdfs.kerberosPrincipal": FLAFKA,
        "hdfs.kerberosKeytab": str(kdc.keytab("flafka")),
        "hdfs.fileType": "DataStream",
        "hdfs.stagingDir": str(staging),
    }
    config, problems = HdfsConfig.parse(options)
    assert config is not None, problems
    return config


def deliver(sink: HdfsSink) -> None:
    """Deliver one event with the header app = a."""
    sink.open()
    owned = sink.resume(ASSIGNMENT)
    sink.write(
        Batch.of([Event(b"1", {"app": "a"})], Origin.of_record(ASSIGNMENT.topic, ASSIGNMENT.partition, 0, 0, 1))
    )
    sink.commit(sink.stage(owned, OffsetRange(0, 1)))


def grant(hdfs: SecureHdfs, refusal: str) -> None:
    """Do what the command in an error does."""
    match = re.search(r"hdfs dfs -setfacl -m (\S+) ([^\s,]+)", refusal)
    assert match is not None, refusal
    entry, path = match.groups()
    assert hdfs.superuser_request("PUT", path, "MODIFYACLENTRIES", aclspec=entry).ok


def test_a_denial_that_comes_and_goes_loses_and_doubles_nothing(
    kdc: Kdc, secure_hdfs: SecureHdfs, path: str, tmp_path: Path
) -> None:
    """Rights change, as by Ranger; the command in the first error is executed."""
    root, ids = f"{path}/logs", count()
    text = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = http
a1.sources.s1.bind = 127.0.0.1
a1.sources.s1.port = 0
a1.sources.s1.channels = c1
a1.channels.c1.type = file
a1.channels.c1.checkpointDir = {tmp_path}/checkpoint
a1.channels.c1.dataDirs = {tmp_path}/data
a1.channels.c1.minimumRequiredSpace = 1048576
a1.sinks.k1.type = hdfs
a1.sinks.k1.channel = c1
a1.sinks.k1.hdfs.path = webhdfs://{secure_hdfs.webhdfs}{root}/%{{app}}
a1.sinks.k1.hdfs.kerberosPrincipal = {FLAFKA}
a1.sinks.k1.hdfs.kerberosKeytab = {kdc.keytab("flafka")}
a1.sinks.k1.hdfs.fileType = DataStream
a1.sinks.k1.hdfs.rollInterval = 1
"""
    sent: list[str] = []

    def send() -> None:
        sent.extend(str(next(ids)) for _ in range(10))
        events = [{"headers": {"app": "a"}, "body": body} for body in sent[-10:]]
        assert requests.post(f"http://127.0.0.1:{agent.port('s1')}/", json=events, timeout=60).ok

    def denial() -> str:
        agent.until(lambda: "Permission denied" in agent.failing().get("SINK.k1", ""), "the denial")
        return agent.failing()["SINK.k1"]

    def deny(directory: str) -> None:
        for op, options in (("SETOWNER", {"owner": "hdfs"}), ("SETPERMISSION", {"permission": "700"})):
            assert secure_hdfs.superuser_request("PUT", directory, op, **options).ok

    def all_arrive() -> None:
        agent.until(lambda: len(secure_hdfs.lines(f"{root}/a")) >= len(sent), "all events")
        agent.wait_until_healthy()

    with RunningAgent(tmp_path, text) as agent:
        send()
        all_arrive()
        deny(f"{root}/a")
        send()
        why = denial()
        assert "are committed, and their renames wait" in why
        match = re.search(rf"to allow it: hdfs (dfs -setfacl -m user:flafka:rwx {root}/a)", why)
        assert match is not None, why
        kdc.kinit("nn/localhost", tmp_path / "superuser")
        command = secure_hdfs.shell(shlex.split(match[1]), find_java(), ensure("hdfs"))
        subprocess.run(command, env={**os.environ, "KRB5CCNAME": str(tmp_path / "superuser")}, check=True)
        all_arrive()
        for directory in (f"{root}/.flafka", root, path):
            deny(directory)
            send()
            assert f"HDFS does not let user '{FLAFKA}'" in denial()
            assert secure_hdfs.superuser_request("PUT", directory, "SETOWNER", owner="flafka").ok
            all_arrive()
        assert agent.stop() == 0
    assert sorted(secure_hdfs.lines(f"{root}/a"), key=int) == sent


def test_check_tries_to_write_and_rename_and_leaves_nothing(
    kdc: Kdc, secure_hdfs: SecureHdfs, path: str, tmp_path: Path
) -> None:
    root = f"{path}/logs"

    def check() -> list[str]:
        return list(HdfsSink(config(kdc, secure_hdfs, f"{root}/%{{app}}", tmp_path)).check_connectivity())

    def names(directory: str) -> list[str]:
        statuses = secure_hdfs.superuser_request("GET", directory, "LISTSTATUS").json()
        return [status["pathSuffix"] for status in statuses["FileStatuses"]["FileStatus"]]

    assert (check(), names(path)) == ([], [])
    secure_hdfs.create_directory(root, "flafka")
    assert (check(), names(root)) == ([], [])
    for quota, value, says in (
        ("storagespacequota", 1 << 20, "DiskSpace quota"),
        ("namespacequota", 2, "NameSpace quota"),
    ):
        options = {"namespacequota": str(2**63 - 1), "storagespacequota": str(2**63 - 1), quota: str(value)}
        assert secure_hdfs.superuser_request("PUT", root, "SETQUOTA", **options).ok
        [problem] = check()
        assert says in problem
        assert names(root) == []
    assert secure_hdfs.superuser_request("PUT", root, "SETQUOTA", namespacequota="-1", storagespacequota="-1").ok
    secure_hdfs.create_directory(f"{root}/.flafka", "hdfs", "700")
    [problem] = check()
    assert re.search(f"does not let user '{FLAFKA}' .*; to allow it: .* {root}/.flafka", problem)
