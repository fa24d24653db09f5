"""Sink `hdfs` with Kerberos: a KDC of MIT, a NameNode and a DataNode that admit nobody without a ticket."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flafka.agent.jvm.jars import ensure
from flafka.agent.jvm.java import find_java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import java_command
from flafka.agent.services.kafka import KafkaCluster
from flafka.agent.services.kdc import REALM, Kdc
from flafka.agent.services.running import until
from flafka.plugins import Retry
from flafka.plugins.net.gssapi import Credential, KerberosError
from flafka.plugins.net.keytab import read_principals
from flafka.sinks.hdfs import delegation
from flafka.sinks.hdfs.delegation import Login
from flafka.sinks.hdfs.filesystem import Refused
from flafka.sinks.hdfs.webhdfs import WebHdfs
from tests.fixtures.httpfs import HttpFs
from tests.fixtures.kerberos import TOKEN_SECONDS, SecureHdfs
from tests.system.running import agent_command, unique
from tests.system.test_groups import Group

pytestmark = [pytest.mark.usefixtures("servers"), pytest.mark.xdist_group("kerberos")]
FLAFKA = f"flafka@{REALM}"


@pytest.fixture
def path(secure_hdfs: SecureHdfs) -> str:
    """Directory of the user `flafka`."""
    path = f"/{unique('secure')}"
    secure_hdfs.create_directory(path, "flafka")
    return path


@pytest.fixture
def user(kdc: Kdc) -> str:
    """User of one test, with a keytab of its own."""
    user = unique("user")
    kdc.add(user)
    return user


@pytest.fixture
def connect(secure_hdfs: SecureHdfs) -> Iterator[Callable[..., WebHdfs]]:
    """Function that returns a client of the secure HDFS with this login."""
    with contextlib.ExitStack() as stack:

        def connect(
            *login: str | None, settings: dict[str, str] | None = None, address: str = secure_hdfs.webhdfs
        ) -> WebHdfs:
            client = WebHdfs(
                [address],
                scheme="http",
                user=None,
                timeout=30,
                threads=2,
                stopping=threading.Event(),
                file_settings=settings,
                login=Login(*login),
            )
            stack.callback(client.close)
            return client

        yield connect


def owner(hdfs: SecureHdfs, file: str) -> str:
    return str(hdfs.superuser_request("GET", file, "GETFILESTATUS").json()["FileStatus"]["owner"])


def test_files_belong_to_the_principal_or_to_the_proxy_user(
    kdc: Kdc, secure_hdfs: SecureHdfs, path: str, connect: Callable[..., WebHdfs]
) -> None:
    keytab = str(kdc.keytab("flafka"))
    assert owner(secure_hdfs, connect(FLAFKA, keytab).upload(f"{path}/own", b"1")) == "flafka"
    secure_hdfs.create_directory(f"{path}/alice", "alice")
    assert owner(secure_hdfs, connect(FLAFKA, keytab, "alice").upload(f"{path}/alice/a", b"2")) == "alice"
    with pytest.raises(Retry, match=r"does not let flafka@FLAFKA.TEST act as mallory: add hadoop.proxyuser.flafka"):
        connect(FLAFKA, keytab, "mallory").upload(f"{path}/m", b"3")
    with pytest.raises(Refused, match=f"HDFS does not let user 'alice' write {path}/a-0"):
        connect(FLAFKA, keytab, "alice").upload(f"{path}/a", b"4")


def test_the_ticket_cache_and_the_token_file_of_the_user_are_used(
    tmp_path: Path,
    kdc: Kdc,
    secure_hdfs: SecureHdfs,
    path: str,
    connect: Callable[..., WebHdfs],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path / 'tickets'}")
    with pytest.raises(
        Retry, match=r"HDFS requires Kerberos, and there is no ticket: .*; run kinit, or set hdfs.kerb"
    ):
        connect().upload(f"{path}/none", b"1")
    kdc.kinit("flafka", tmp_path / "tickets")
    assert owner(secure_hdfs, connect().upload(f"{path}/ticket", b"1")) == "flafka"
    file = tmp_path / "tokens"
    fetch = java_command(
        find_java(),
        [ensure("hdfs") / "*", secure_hdfs.directory / "conf" / "namenode"],
        "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher",
        heap_mb=96,
        options=[*secure_hdfs.kerberos_options(), f"-Dflafka.log={tmp_path}/log"],
    )
    subprocess.run([*fetch, "--renewer", "flafka", str(file)], check=True, capture_output=True)
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nonexistent")
    monkeypatch.setenv("HADOOP_TOKEN_FILE_LOCATION", str(file))
    delegation._latest_tokens.clear()
    assert owner(secure_hdfs, connect().upload(f"{path}/token", b"1")) == "flafka"
    delegation._latest_tokens.clear()
    with pytest.raises(Retry, match=r"hdfs.proxyUser needs a ticket: a token, as in .* of HADOOP_TOKEN"):
        connect(None, None, "alice").upload(f"{path}/alice", b"1")
    file.write_bytes(b"HDTS")
    delegation._latest_tokens.clear()  # of clients that are still open
    with pytest.raises(Retry, match=f"{re.escape(str(file))}, of HADOOP_TOKEN_FILE_LOCATION, is not a token file of"):
        connect().upload(f"{path}/damaged", b"1")


def _without_key(kdc: Kdc, user: str) -> str:
    return str(kdc.keytab("alice"))


def _missing(kdc: Kdc, user: str) -> str:
    return "/nonexistent.keytab"


def _changed_key(kdc: Kdc, user: str) -> str:
    kdc.admin("cpw", "-randkey", user)
    return str(kdc.keytab(user))


def _disabled(kdc: Kdc, user: str) -> str:
    kdc.admin("modprinc", "-allow_tix", user)
    return str(kdc.keytab(user))


def _expired(kdc: Kdc, user: str) -> str:
    kdc.admin("modprinc", "-expire", "2020-01-01", user)
    return str(kdc.keytab(user))


def _password_expired(kdc: Kdc, user: str) -> str:
    kdc.admin("modprinc", "-pwexpire", "2020-01-01", user)
    return str(kdc.keytab(user))


def _locked(kdc: Kdc, user: str) -> str:
    old, cache = kdc.keytab(f"{user}-old"), kdc.directory / "cache"
    shutil.copy(kdc.keytab(user), old)
    kdc.admin("ktadd", "-k", str(kdc.keytab(user)), user)
    kdc.admin("addpol", "-maxfailure", "2", user)
    kdc.admin("modprinc", "-policy", user, user)
    for _ in range(3):
        with pytest.raises(ServiceError, match=r"Preauthentication failed|have been revoked"):
            kdc.kinit(user, cache, old)
    return str(kdc.keytab(user))


def _removed(kdc: Kdc, user: str) -> str:
    kdc.admin("delprinc", "-force", user)
    return str(kdc.keytab(user))


@pytest.mark.parametrize(
    ("prepare", "says"),
    [
        (_without_key, r"the keytab .* has no key of {user}@FLAFKA.TEST, only of alice@FLAFKA.TEST"),
        (_missing, r"the keytab /nonexistent.keytab cannot be read: No such file or directory"),
        (
            _changed_key,
            "Preauthentication failed; the KDC has another key than version 2 in .*; test it with: kinit -kt",
        ),
        (_disabled, r"ticket for {user}@FLAFKA.TEST: .* have been revoked; .* kadmin's modprinc \+allow_tix, or"),
        (
            _locked,
            "ticket for {user}@FLAFKA.TEST: .* have been revoked; it is disabled or locked: .* modprinc -unlock",
        ),
        (_expired, "ticket for {user}@FLAFKA.TEST: Client's entry in database has expired; .* modprinc -expire"),
        (_password_expired, "ticket for {user}@FLAFKA.TEST: Password has expired; kadmin's modprinc -pwexpire"),
        (_removed, "ticket for {user}@FLAFKA.TEST: Client '{user}@FLAFKA.TEST' not found in Kerberos .* addprinc"),
    ],
)
def test_a_refusal_names_the_principal_and_the_way_out(
    kdc: Kdc, user: str, connect: Callable[..., WebHdfs], prepare: Callable[[Kdc, str], str], says: str
) -> None:
    keytab = prepare(kdc, user)
    with pytest.raises(Retry, match=says.format(user=user)):
        connect(f"{user}@{REALM}", keytab).status("/")


def test_a_wrong_key_is_not_tried_until_the_principal_is_locked(
    kdc: Kdc, user: str, path: str, connect: Callable[..., WebHdfs]
) -> None:
    keytab = _changed_key(kdc, user)
    for _ in range(3):  # as a sink that is reopened
        with pytest.raises(
            Retry, match=r"has another key than version 2 .*; the next try is in 300 s, or when the k"
        ):
            connect(f"{user}@{REALM}", keytab).status("/")
    assert "Failed password attempts: 1\n" in kdc.admin("getprinc", user)
    kdc.admin("ktadd", "-k", keytab, user)
    assert connect(f"{user}@{REALM}", keytab).status("/") is not None


def test_a_reopened_sink_needs_no_kdc_and_one_that_stops_does_not_wait_for_it(
    kdc: Kdc, path: str, connect: Callable[..., WebHdfs]
) -> None:
    keytab = str(kdc.keytab("flafka"))
    first = connect(FLAFKA, keytab)
    uploaded = first.upload(f"{path}/a", b"1")
    first.close()
    kdc.server("kdc").signal(signal.SIGSTOP)
    try:
        assert connect(FLAFKA, keytab).read(uploaded) == b"1"
        stopping = connect(FLAFKA, keytab, "alice")
        threading.Timer(1, stopping._stopping.set).start()
        began = time.monotonic()
        with pytest.raises(Retry, match="no delegation token yet"):
            stopping.status(path)
        stopping.close()
        assert time.monotonic() - began < 10
    finally:
        kdc.server("kdc").signal(signal.SIGCONT)


def test_reopened_sinks_share_a_token(
    kdc: Kdc, user: str, secure_hdfs: SecureHdfs, connect: Callable[..., WebHdfs]
) -> None:
    began, login = time.monotonic(), (f"{user}@{REALM}", str(kdc.keytab(user)))
    for _ in range(20):  # as tasks on Spark
        client = connect(*login)
        assert client.status("/") is not None
        client.close()
    renewals = (time.monotonic() - began) / (TOKEN_SECONDS[0] * delegation.RENEWAL_FRACTION)
    assert len(secure_hdfs.tokens(user)) <= 1 + renewals


def test_a_call_after_the_return_of_the_kdc_gets_a_token_at_once(
    kdc: Kdc, user: str, connect: Callable[..., WebHdfs], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delegation, "TOKEN_RETRY_SECONDS", (600.0, 600.0))
    client = connect(f"{user}@{REALM}", str(kdc.keytab(user)))
    kdc.kill("kdc")
    try:
        with pytest.raises(Retry, match="Cannot contact any KDC"):
            client.status("/")
    finally:
        kdc.start()
    monkeypatch.setattr(delegation, "TOKEN_RETRY_SECONDS", (0.0, 600.0))
    assert client.status("/") is not None


def test_a_cancelled_token_and_one_that_ends_within_an_upload_are_replaced(
    kdc: Kdc, secure_hdfs: SecureHdfs, path: str, connect: Callable[..., WebHdfs]
) -> None:
    client = connect(FLAFKA, str(kdc.keytab("flafka")), settings={"blocksize": str(1 << 20)})
    first = client.upload(f"{path}/a", b"1")
    tokens = client._namenodes._tokens
    assert tokens is not None
    credential = Credential(FLAFKA, str(kdc.keytab("flafka")))
    answer = client._namenodes._new_session(1, 30).put(
        f"http://{secure_hdfs.webhdfs}/webhdfs/v1/",
        params={"op": "CANCELDELEGATIONTOKEN", "token": tokens._token},
        headers={"Authorization": credential.negotiate("localhost")},
    )
    assert answer.status_code == 200, answer.text
    assert client.status(first) is not None
    data = bytes(range(256)) * (1 << 16)  # 16 MiB, of which buffers hold a part
    datanode = secure_hdfs.server("datanode-1")
    uploaded: list[str] = []
    thread = threading.Thread(target=lambda: uploaded.append(client.upload(f"{path}/long", data)))
    thread.start()
    until(lambda: client.status(f"{path}/long-0") is not None, "the upload to begin")
    datanode.signal(signal.SIGSTOP)
    try:
        time.sleep(TOKEN_SECONDS[0] + 1)  # the life of the token that the upload uses
    finally:
        datanode.signal(signal.SIGCONT)
    thread.join(120)
    assert uploaded
    assert client.read(uploaded[0]) == data


def test_httpfs_does_what_the_namenode_does(
    kdc: Kdc, httpfs: HttpFs, secure_hdfs: SecureHdfs, path: str, connect: Callable[..., WebHdfs]
) -> None:
    client = connect(FLAFKA, str(kdc.keytab("flafka")), address=httpfs.address)
    client.mkdirs(f"{path}/d/.flafka/tmp")
    data = bytes(range(256)) * 1000
    uploaded = client.upload(f"{path}/d/.flafka/tmp/a", data)
    assert client.read(uploaded) == data
    client.adopt(uploaded, f"{path}/d")
    assert client.rename(uploaded, f"{path}/d/a")
    assert not client.rename(uploaded, f"{path}/d/a")
    status = secure_hdfs.superuser_request("GET", f"{path}/d/a", "GETFILESTATUS").json()["FileStatus"]
    assert (status["owner"], status["permission"], status["length"]) == ("flafka", "644", len(data))
    assert [entry.name for entry in client.list(f"{path}/d")] == [".flafka", "a"]
    assert client.status(f"{path}/none") is client.read(f"{path}/none") is None
    client.check_writable(path)
    with pytest.raises(Refused, match=r"HDFS does not let user 'flafka@FLAFKA\.TEST' write /mine"):
        client.upload("/mine", b"1")
    httpfs.kill("httpfs")  # which forgets its tokens
    httpfs.start()

    def is_read() -> bool:
        with contextlib.suppress(Retry):  # of a try a moment ago
            return client.read(f"{path}/d/a") == data
        return False

    until(is_read, "the file to be read again")
    client.delete(f"{path}/d")
    assert client.list(path) == []


def test_check_names_what_is_wrong_with_a_login(
    tmp_path: Path, kdc: Kdc, user: str, secure_hdfs: SecureHdfs, path: str
) -> None:
    def check(principal: str, keytab: Path) -> str:
        text = f"""
a1.sources = s1
a1.channels = c1
a1.sinks = k1
a1.sources.s1.type = seq
a1.sources.s1.channels = c1
a1.channels.c1.type = memory
a1.sinks.k1.type = hdfs
a1.sinks.k1.channel = c1
a1.sinks.k1.hdfs.path = webhdfs://{secure_hdfs.webhdfs}{path}
a1.sinks.k1.hdfs.kerberosPrincipal = {principal}
a1.sinks.k1.hdfs.kerberosKeytab = {keytab}
"""
        (tmp_path / "agent.conf").write_text(text)
        result = agent_command("check", "--connect", "-c", str(tmp_path / "agent.conf"))
        assert "Traceback" not in result.stderr
        return f"{result.returncode}\n{result.stdout}{result.stderr}"

    assert check(FLAFKA, kdc.keytab("flafka")).startswith("0\n")
    refused = re.sub(r"\s+", " ", check(f"{user}@{REALM}", kdc.keytab(user)))
    assert f"HDFS does not let user '{user}@{REALM}' write into {path}: Permission denied" in refused
    assert "has no key of nobody@FLAFKA.TEST" in re.sub(r"\s+", " ", check(f"nobody@{REALM}", kdc.keytab("flafka")))


def test_the_sandbox_has_secured_servers_and_tickets(
    tmp_path: Path, kdc: Kdc, user: str, secure_hdfs: SecureHdfs, path: str
) -> None:
    home = tmp_path / "flafka" / "secure"
    home.mkdir(parents=True)
    for cluster in (kdc, secure_hdfs):
        (home / cluster.service).symlink_to(cluster.directory)

    def run(*arguments: str, code: int = 0, **environment: str) -> str:
        result = agent_command("sandbox", *arguments, environment={"XDG_DATA_HOME": str(tmp_path), **environment})
        assert result.returncode == code, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result.stdout + result.stderr

    assert {
        row["server"]: row["state"] for row in json.loads(run("status", "--secure", "kdc", "hdfs", "--json"))
    } == {
        "kdc": "up",
        "namenode": "up",
        "datanode-1": "up",
    }
    exports = dict(re.findall(r"(?m)^export (\w+)='?(.*?)'?$", run("kinit", user)))
    assert list(exports) == ["KRB5_CONFIG", "KRB5CCNAME"]
    assert path in run("hdfs", "--secure", "--", "-ls", "/", **exports)
    assert "Client cannot authenticate" in run(
        "hdfs", "--secure", "--", "-ls", "/", code=1, KRB5CCNAME="FILE:/nonexistent"
    )


def test_nothing_is_lost_or_doubled_over_the_ends_of_tokens_and_the_failures_of_their_servers(
    tmp_path: Path,
    kdc: Kdc,
    user: str,
    secure_hdfs: SecureHdfs,
    httpfs: HttpFs,
    kafka_cluster: KafkaCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three lives of tokens, the KDC away and frozen, a new key, a disabled user, cancelled tokens, and kills.

    NameNode, HttpFS and agent are killed. The sink k2 writes through HttpFS.
    """
    monkeypatch.setenv("FLAFKA_LOG_LEVEL", "DEBUG")  # every error with its traceback
    path = f"/{unique('secure')}"
    secure_hdfs.create_directory(path, user)
    sink = {
        "type": "hdfs",
        "channel": "c1",
        "hdfs.path": f"webhdfs://{secure_hdfs.webhdfs}{path}",
        "hdfs.kerberosPrincipal": f"{user}@{REALM}",
        "hdfs.kerberosKeytab": str(kdc.keytab(user)),
        "hdfs.fileType": "DataStream",
        "hdfs.rollInterval": "1",
        "hdfs.rollSize": "0",
        "hdfs.rollCount": "0",
    }
    name = unique("kerberos")
    second = {"hdfs.path": f"webhdfs://{httpfs.address}{path}/httpfs", "group": f"{name}-httpfs"}
    lines = [f"a1.sinks.k1.{key} = {value}" for key, value in sink.items()]
    lines += [f"a1.sinks.k2.{key} = {value}" for key, value in (sink | second).items()]
    group = Group(tmp_path, kafka_cluster, name, "\n".join(lines))
    group.configuration = group.configuration.replace("a1.sinks = k1", "a1.sinks = k1 k2")
    enough = threading.Event()

    def feed() -> None:
        while not enough.wait(0.2):
            group.put(30)

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    agent = group.agent().__enter__()
    try:

        def await_delivery(sink: str = "SINK.k1", *, or_failure: bool = False) -> None:
            before = agent.count(sink, "EventDrainSuccessCount")

            def delivered() -> bool:
                more = agent.count(sink, "EventDrainSuccessCount") > before
                return more or (or_failure and "SINK.k1" in agent.failing())

            agent.until(delivered, "a delivery")

        await_delivery()
        started = time.monotonic()
        kdc.server("kdc").signal(signal.SIGSTOP)
        await_delivery(or_failure=True)  # a busy machine may deliver less than once in the life of a token
        kdc.server("kdc").signal(signal.SIGCONT)
        kdc.kill("kdc")
        agent.until(lambda: "SINK.k1" in agent.failing(), "the tokens to end without a KDC")
        assert re.search("Cannot contact any KDC|no delegation token yet", agent.failing()["SINK.k1"])
        kdc.start()
        await_delivery()
        secure_hdfs.cancel_tokens(user, kdc.keytab(user))
        httpfs.kill("httpfs")  # which forgets its tokens
        httpfs.start()
        await_delivery()
        await_delivery("SINK.k2")
        kdc.admin("modprinc", "-allow_tix", user)
        agent.until(lambda: "have been revoked" in agent.failing().get("SINK.k1", ""), "the refusal")
        kdc.admin("modprinc", "+allow_tix", user)
        await_delivery()
        kdc.admin("cpw", "-randkey", user)
        kdc.admin("ktadd", "-k", str(kdc.keytab(user)), user)
        secure_hdfs.kill("namenode")
        secure_hdfs.start()
        await_delivery()
        agent.stop(signal.SIGKILL)
        agent.__exit__()
        agent = group.agent().__enter__()
        await_delivery()
        agent.until(lambda: time.monotonic() > started + 3 * TOKEN_SECONDS[1], "three lives of tokens")
        enough.set()
        feeder.join()
        bodies = Counter(body.decode() for body in group.bodies)
        for written in (path, f"{path}/httpfs"):
            agent.until(lambda written=written: len(secure_hdfs.lines(written)) >= len(bodies), "all events")
        assert agent.stop() == 0
        for written in (path, f"{path}/httpfs"):
            assert Counter(secure_hdfs.lines(written)) == bodies
        log = (tmp_path / "a1" / "agent.log").read_text()
        assert not re.search(r"delegation=[^…]", log)
    finally:
        enough.set()
        agent.__exit__()
        kdc.server("kdc").signal(signal.SIGCONT)
        kdc.start()
        secure_hdfs.start()
        httpfs.start()


def test_keytabs_are_read(kdc: Kdc, user: str) -> None:
    kdc.admin("ktadd", "-k", str(kdc.keytab(user)), user)
    assert read_principals(kdc.keytab(user)) == {f"{user}@{REALM}": 3}
    assert read_principals(kdc.service_keytab)[f"HTTP/localhost@{REALM}"] >= 2
    with pytest.raises(KerberosError, match=r"HTTP/elsewhere@FLAFKA\.TEST not found in Kerberos database"):
        Credential(FLAFKA, str(kdc.keytab("flafka"))).negotiate("elsewhere")
