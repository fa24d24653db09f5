"""Maven repository of the jars, and the settings of the user for it.

- Repository: FLAFKA_MAVEN_REPO (a URL, or a directory of `agent sandbox fetch`), else a mirror of Central in
  `~/.m2/settings.xml`, else Maven Central.
- Proxies: HTTPS_PROXY and NO_PROXY.
- Certificate authorities: as for requests, curl and pip.
"""

import configparser
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit
from xml.etree import ElementTree

from flafka.agent.jvm import ServiceError

if TYPE_CHECKING:
    import requests

CENTRAL = "repo1.maven.org/maven2"
CA_VARIABLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "SSL_CERT_FILE")


@dataclass(frozen=True)
class Repository:
    """Maven repository; `credentials` are user name and password."""

    url: str
    credentials: tuple[str, str] | None = None

    @property
    def directory(self) -> Path | None:
        """Path of the repository if it is a local directory; else None."""
        return None if "://" in self.url else Path(self.url)

    def __str__(self) -> str:
        """Return the URL without user name and password."""
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    def session(self) -> "requests.Session":
        """Return an HTTP session with the user's proxies, authorities and credentials.

        Raises ServiceError if `requests` is not installed.
        """
        try:
            import requests
        except ImportError:
            raise ServiceError("downloading jars needs requests: pip install 'flafka[sandbox]'") from None
        session = requests.Session()
        session.auth = self.credentials
        session.verify = ca_bundle() or True
        session.headers["Accept-Encoding"] = "identity"  # compression would change sizes and ranges
        return session


def find_repository() -> Repository:
    """Return the repository to use: FLAFKA_MAVEN_REPO, else a mirror in Maven's settings, else Maven Central.

    Raises ServiceError if the settings are invalid.
    """
    if url := os.environ.get("FLAFKA_MAVEN_REPO"):
        return Repository(url.rstrip("/") if "://" in url else str(Path(url).expanduser().absolute()))
    settings = Path.home() / ".m2" / "settings.xml"
    mirror = _mirror(settings) if settings.is_file() else None
    return mirror or Repository(f"https://{CENTRAL}")


def _mirror(settings: Path) -> Repository | None:
    """Return the first mirror of Central in Maven's settings, with the credentials of its server; None without one.

    Raises ServiceError for invalid settings, and for an encrypted password.
    """
    try:
        root = ElementTree.parse(settings).getroot()  # noqa: S314  # the user's own file
    except ElementTree.ParseError as error:
        raise ServiceError(f"{settings}: {error}") from None
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        url = mirror.findtext("{*}url", "").strip().rstrip("/")
        if not url or not _covers_central(mirror.findtext("{*}mirrorOf", "")):
            continue
        name = mirror.findtext("{*}id", "").strip()
        for server in root.iterfind("{*}servers/{*}server"):
            if server.findtext("{*}id", "").strip() == name:
                user, password = (_expand(server.findtext(f"{{*}}{tag}", "")) for tag in ("username", "password"))
                if re.fullmatch(r"\{.+\}", password):
                    raise ServiceError(
                        f"{settings}: the password of server {name!r} is encrypted by Maven and cannot be read here\n"
                        "  set FLAFKA_MAVEN_REPO to the mirror's URL, with user:password@ before the host"
                    )
                return Repository(url, (user, password))
        return Repository(url)
    return None


def _covers_central(mirror_of: str) -> bool:
    """Return True if Maven's `<mirrorOf>` list includes the repository `central`."""
    names = {name.strip() for name in mirror_of.split(",")}
    return "!central" not in names and bool(names & {"*", "central", "external:*"})


def _expand(value: str) -> str:
    """Return the value with Maven's `${env.NAME}` replaced by environment variables, which are empty if unset."""
    return re.sub(r"\$\{env\.(\w+)\}", lambda match: os.environ.get(match[1], ""), value.strip())


def ca_bundle() -> str | None:
    """Return the user's file of certificate authorities; None if neither a variable nor pip's settings name one."""
    for name in CA_VARIABLES:
        if path := os.environ.get(name):
            return path
    parser = configparser.RawConfigParser()
    home, config = Path.home(), os.environ.get("XDG_CONFIG_HOME")
    # Order of pip: system, user (legacy and current path), virtual environment, PIP_CONFIG_FILE; the last one wins.
    files = [Path("/etc/pip.conf"), home / ".pip" / "pip.conf"]
    files += [Path(config or home / ".config") / "pip" / "pip.conf", Path(sys.prefix) / "pip.conf"]
    parser.read([*files, os.environ.get("PIP_CONFIG_FILE", os.devnull)])
    return parser.get("global", "cert", fallback=None)
