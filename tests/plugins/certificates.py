"""Self-signed certificates for tests."""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

NAMES = "subjectAltName=DNS:localhost,IP:127.0.0.1"


def certificate(
    directory: Path, names: str = NAMES, whose: str = "server", *, days: int = 30, password: str = "changeit"
) -> Path:
    """Write `server.crt`, and with its key `server.pem` and `server.p12` (with that password), for this machine.

    Certificates of another host or client have another name in `whose`.
    """
    for name, content in _create(names, whose, days, password).items():
        (directory / name).write_bytes(content)
    return directory


@cache
def _create(names: str, whose: str, days: int, password: str) -> dict[str, bytes]:
    """Return the certificate, created once a run."""
    with tempfile.TemporaryDirectory(prefix=f"{whose}-") as temporary:
        directory = Path(temporary)
        key, crt = directory / "server.key", directory / "server.crt"
        new = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            str(days),
            "-subj",
            "/CN=localhost",
        ]
        _run(*new, "-addext", names, "-keyout", str(key), "-out", str(crt))
        (directory / "server.pem").write_bytes(key.read_bytes() + crt.read_bytes())
        pack = ["openssl", "pkcs12", "-export", "-inkey", str(key), "-in", str(crt), "-passout", f"pass:{password}"]
        _run(*pack, "-out", str(directory / "server.p12"))
        return {file.name: file.read_bytes() for file in directory.iterdir()}


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
