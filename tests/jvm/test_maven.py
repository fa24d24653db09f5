from pathlib import Path

import pytest

from flafka.agent.jvm import ServiceError
from flafka.agent.jvm.maven import CA_VARIABLES, Repository, ca_bundle, find_repository

SETTINGS = """<settings xmlns="urn:any">
  <servers><server><id>inner</id><username>ann</username><password>{password}</password></server></servers>
  <mirrors>
    <mirror><id>other</id><mirrorOf>snapshots</mirrorOf><url>http://other.test/</url></mirror>
    <mirror><id>inner</id><mirrorOf>{mirror_of}</mirrorOf><url> http://inner.test/maven/ </url></mirror>
  </mirrors>
</settings>"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Home directory without any settings."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("FLAFKA_MAVEN_REPO", "XDG_CONFIG_HOME", "PIP_CONFIG_FILE", *CA_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / ".m2").mkdir()
    return tmp_path


def settings(home: Path, mirror_of: str, password: str = "pw") -> None:
    (home / ".m2" / "settings.xml").write_text(SETTINGS.format(mirror_of=mirror_of, password=password))


def test_central_is_the_default() -> None:
    assert find_repository().url.startswith("https://repo1.")


def test_the_variable_comes_before_maven_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings(home, "*")
    monkeypatch.setenv("FLAFKA_MAVEN_REPO", "http://mine.test/")
    assert find_repository() == Repository("http://mine.test")


@pytest.mark.parametrize("mirror_of", ["central", "*", "external:*", "snapshots, central", "*,!snapshots"])
def test_a_mirror_of_central_is_used_with_its_credentials(home: Path, mirror_of: str) -> None:
    settings(home, mirror_of)
    assert find_repository() == Repository("http://inner.test/maven", ("ann", "pw"))


@pytest.mark.parametrize("mirror_of", ["*,!central", "releases", ""])
def test_mirrors_of_other_repositories_are_not_used(home: Path, mirror_of: str) -> None:
    settings(home, mirror_of)
    assert find_repository().url.startswith("https://repo1.")


def test_a_password_may_come_from_the_environment(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEXUS_TOKEN", "t0ken")
    settings(home, "central", password="${env.NEXUS_TOKEN}")
    assert find_repository().credentials == ("ann", "t0ken")


def test_an_encrypted_password_is_refused_with_advice(home: Path) -> None:
    settings(home, "central", password="{jSMOWnoPFgsHVpMvz5VrIt5kRbzGpI8u+9EF1iFQyJQ=}")
    with pytest.raises(ServiceError, match="FLAFKA_MAVEN_REPO"):
        find_repository()


def test_broken_settings_are_named(home: Path) -> None:
    (home / ".m2" / "settings.xml").write_text("<settings>")
    with pytest.raises(ServiceError, match=r"settings\.xml: no element found"):
        find_repository()


def test_a_repository_does_not_show_its_password() -> None:
    assert str(Repository("http://ann:pw@mine.test:81/maven")) == "http://mine.test:81/maven"


def test_certificate_authorities_come_from_pip_where_no_variable_names_them(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.prefix", str(home / "venv"))
    pip = home / "pip.conf"
    pip.write_text("[global]\ncert = /company/ca.pem\nformat = %(percent)s\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(pip))
    assert ca_bundle() == "/company/ca.pem"
    monkeypatch.setenv("SSL_CERT_FILE", "/other.pem")
    assert ca_bundle() == "/other.pem"
    assert Repository("http://mine.test").session().verify == "/other.pem"
