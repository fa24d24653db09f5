"""Clients that are made anew once their certificates have changed."""

from __future__ import annotations

import itertools
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from flafka.plugins.kafka import renewal
from flafka.plugins.kafka.clients import QUERY, new_admin
from flafka.plugins.kafka.properties import QUIET, client_properties
from flafka.plugins.kafka.renewal import ClientRenewal
from tests.plugins.certificates import certificate

TIMES = itertools.count(10**18, 10**9)
"""Growing times of modification, in ns."""
LOG = logging.getLogger("a1.channels.c1")
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")


def copy(source: Path, target: Path) -> None:
    """Copy a file, with a time that no earlier copy has: the clock of a file system may be too coarse for that."""
    shutil.copy(source, target)
    os.utime(target, ns=(0, next(TIMES)))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "CERTIFICATE_CHECK_SECONDS", 0.0)


def make(properties: dict[str, Any]) -> str:
    """Make a client with these properties, and return the certificate that it has read."""
    new_admin(QUERY, {**QUIET, "bootstrap.servers": "127.0.0.1:1", **properties})
    return str(properties.get("ssl.certificate.pem") or Path(properties["ssl.certificate.location"]).read_text())


def renewal_of(configured: dict[str, str]) -> ClientRenewal:
    return ClientRenewal(configured, lambda: client_properties(configured), LOG)


def test_a_certificate_without_its_new_key_is_not_used_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    old, new = tmp_path / "old", tmp_path / "new"
    for directory in (old, new):
        directory.mkdir()
        certificate(directory, whose=directory.name)
    own, key = tmp_path / "own.pem", tmp_path / "key.pem"
    for file in (own, key):
        copy(old / "server.pem", file)
    configured = {
        "security.protocol": "SSL",
        "ssl.certificate.location": str(own),
        "ssl.key.location": str(key),
        "ssl.ca.location": str(old / "server.crt"),
    }
    files = renewal_of(configured)
    assert files.renew(make) is None
    copy(new / "server.pem", own)
    assert files.renew(make) is None
    assert files.renew(make) is None
    copy(new / "server.pem", key)
    assert files.renew(make) == own.read_text()
    assert files.renew(make) is None
    refused, made = (record.getMessage() for record in caplog.records if record.name == LOG.name)
    assert "changed certificates cannot be used" in refused
    assert made == f"Kafka's client is made anew, with changed certificates: {key}, {own}"


def test_a_key_store_of_the_environment_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "server.p12"
    certificate(tmp_path)
    monkeypatch.setenv("FLUME_SSL_KEYSTORE_PATH", str(store))
    monkeypatch.setenv("FLUME_SSL_KEYSTORE_PASSWORD", "changeit")
    files = renewal_of({"security.protocol": "SSL", "ssl.ca.location": str(tmp_path / "server.crt")})
    content = store.read_bytes()
    store.unlink()
    assert files.renew(make) is None
    store.write_bytes(content)
    assert "BEGIN CERTIFICATE" in (files.renew(make) or "")
    assert files.renew(make) is None
