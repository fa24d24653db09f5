"""The command `agent`, which first looks whether the packages that it is made of are its own.

Their names are plain words, and others have taken them, too: Django Channels is a package `channels`. Where both are
installed in one place, one has overwritten files of the other; elsewhere the first on Python's path hides the second.
This module has a name that is nobody else's, and imports nothing of those packages before they are looked at.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("agent", "plugins", "sources", "channels", "interceptors", "sinks")
WAY_OUT = (
    "give Flafka a virtual environment of its own: python3 -m venv flafka && flafka/bin/pip install flafka, with "
    "PYTHONPATH unset"
)
_INIT = re.compile(rf"^({'|'.join(PACKAGES)})/__init__\.py,(?:sha256=([\w-]*))?", re.MULTILINE)


def main() -> None:
    """Run the command; code 2 where a package of its is another one's."""
    if taken := list(taken_packages()):
        for sentence in taken:
            print(f"error: {sentence}", file=sys.stderr)
        sys.exit(2)
    ending = Ending()
    atexit.register(ending.leave)  # before others are: the first that is registered is called last
    from agent.cli import main as command

    try:
        command()
        ending.code = 0
    except SystemExit as e:
        ending.code = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise


class Ending:
    """End of this process, without the exit handlers of C where a Kafka client may be at work.

    OpenSSL's handler frees what a client's thread uses that is in a TLS handshake at that moment: SIGSEGV. A client
    lives on where the thread that uses it is not waited for, such as one that looks for brokers.
    """

    def __init__(self) -> None:
        self.code = 1
        """Exit code of the process; 1 for an exception, which Python has shown by then."""

    def leave(self) -> None:
        """Write what is buffered, and end the process."""
        if "confluent_kafka" not in sys.modules:
            return
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
                stream.flush()
        os._exit(self.code)


def taken_packages() -> Iterator[str]:
    """A sentence for each package that cannot be used, as what Python would import by its name is another one's.

    Other distributions are looked through only where something is wrong: it takes a while.
    """
    try:
        installed = list(_claims(importlib.metadata.distribution("flafka")))
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        installed = []
    for package in PACKAGES:
        there, ours = _imported(package), _ours(package)
        if there is None:
            yield f"the package {package!r} is missing beside {__file__}: {WAY_OUT}"
        elif there != ours:
            owners = [claim.owner for claim in _others() if claim.file == there]
            whose = f"that of {', '.join(owners)}" if owners else "another one"
            yield f"the package {package!r} at {there} is {whose}, and hides Flafka's at {ours}: {WAY_OUT}"
        elif any(claim.file == ours and claim.digest not in ("", _digest(ours)) for claim in installed):
            for claim in _others():
                if claim.file == ours and claim.digest == _digest(ours):
                    yield f"{claim.owner} has overwritten Flafka's package {package!r} at {ours}: {WAY_OUT}"


def shared_packages() -> Iterator[str]:
    """A sentence for each package, at present Flafka's, to which another distribution lays claim."""
    for claim in _others():
        ours = _ours(claim.package)
        if claim.file == ours and claim.digest != _digest(ours):
            yield f"{claim.owner} has a package {claim.package!r}, too, and its files are overwritten: {WAY_OUT}"
        elif claim.file != ours and _imported(claim.package) == ours:
            yield f"{claim.owner} has a package {claim.package!r}, too, which Flafka's hides: {WAY_OUT}"


def _ours(package: str) -> Path:
    return Path(__file__).resolve().parent / package / "__init__.py"


def _imported(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).resolve() if spec is not None and spec.origin is not None else None


class PackageClaim(NamedTuple):
    """That a distribution has a package of one of our names."""

    owner: str
    """Name and version."""
    package: str
    file: Path
    """Its `__init__.py`."""
    digest: str
    """Of that file, SHA-256, as it was installed; empty where it is not known."""


def _others() -> list[PackageClaim]:
    # The name comes last: to read it is most of the work, and few lay a claim.
    return [claim for dist in importlib.metadata.distributions() for claim in _claims(dist) if dist.name != "flafka"]


def _claims(dist: importlib.metadata.Distribution) -> Iterator[PackageClaim]:
    for package, digest in _INIT.findall(dist.read_text("RECORD") or ""):
        file = Path(str(dist.locate_file(f"{package}/__init__.py"))).resolve()
        yield PackageClaim(f"{dist.name} {dist.version}", package, file, digest)


def _digest(file: Path) -> str:
    """As wheels write it."""
    content = file.read_bytes() if file.exists() else b""
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


if __name__ == "__main__":
    main()
