"""MIT Kerberos KDC on this host, without root: a realm with principals, keytabs and tickets."""

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from flafka.agent.jvm.jars import cache_directory
from flafka.agent.jvm.java import Java
from flafka.agent.services import ServiceError
from flafka.agent.services.cluster import HOST, Cluster, is_listening

REALM = "FLAFKA.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
PACKAGES = ("krb5-kdc", "krb5-admin-server", "krb5-user")
"""Debian packages with these programs."""
SYSTEM_DIRECTORIES = ("/usr/sbin", "/usr/bin", "/usr/local/sbin", "/usr/local/bin")
SERVICE_PRINCIPALS = ("nn", "dn", "HTTP", "httpfs", "kafka")
"""Services of `localhost`, whose keys are in one keytab."""

_NEEDED = re.compile("krb5|k5crypto|kadm5|kdb5|gssapi|gssrpc|verto|libev|keyutils|com-err|libss2")
"""Part of the names of the packages that the programs need, of those that apt would install."""

# Names are not looked up: the principals have the names that clients use.
KRB5_CONF = """\
[libdefaults]
 default_realm = {realm}
 dns_lookup_kdc = false
 dns_lookup_realm = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
 ticket_lifetime = 10h
[realms]
 {realm} = {{
  kdc = {host}:{port}
 }}
{modules}"""
# Preauthentication, as at every real KDC: without it, neither wrong keys nor clocks are noticed.
KDC_CONF = """\
[kdcdefaults]
 kdc_listen = {host}:{port}
 kdc_tcp_listen = {host}:{port}
[realms]
 {realm} = {{
  database_name = {data}/principal
  key_stash_file = {data}/stash
  acl_file = {data}/acl
  max_life = 10h
  default_principal_flags = +preauth
 }}
{modules}[logging]
 kdc = FILE:{log}
"""


class Kdc(Cluster):
    """KDC of the realm `FLAFKA.TEST`. Its only server is `kdc`.

    Principals and keys survive a stop and `kill -9`. The service principals are of `localhost`.
    """

    service: ClassVar[str] = "kdc"

    @property
    def address(self) -> str:
        """Address `host:port` of the KDC. Raises ServiceError before the first start."""
        return f"{HOST}:{self.ports['kdc']}"

    @property
    def krb5_conf(self) -> Path:
        """Configuration of clients, for KRB5_CONFIG."""
        return self.directory / "conf" / "krb5.conf"

    @property
    def service_keytab(self) -> Path:
        """Keytab with the keys of all service principals."""
        return self.keytab("services.localhost")

    def keytab(self, name: str) -> Path:
        """Return the path of a keytab in this cluster's directory."""
        return self.directory / "keytabs" / f"{name}.keytab"

    def variables(self) -> Mapping[str, str]:
        """Return KRB5_CONFIG."""
        return {"KRB5_CONFIG": str(self.krb5_conf)}

    def default_ports(self) -> Mapping[str, int]:
        """Return 18088 for the KDC."""
        return {"kdc": 18088}

    def names(self) -> list[str]:
        """Return `kdc`."""
        return ["kdc"]

    def library(self) -> Path:
        """Return the root directory of the KDC's programs; download Debian's packages if they are not installed.

        Raises ServiceError.
        """
        return find_programs()

    def prepare(self, java: Java, lib: Path) -> None:  # a KDC needs no Java
        """Write the configuration, and create the realm before the first start. Raises ServiceError."""
        data, log = self.directory / "data", self.server("kdc").log
        for folder in (data, self.krb5_conf.parent, log.parent, self.service_keytab.parent):
            folder.mkdir(parents=True, exist_ok=True)
        plugins = _plugin_directory(lib)
        values = {
            "realm": REALM,
            "host": HOST,
            "port": self.ports["kdc"],
            "modules": f"[dbmodules]\n db_module_dir = {plugins}\n" if plugins is not None else "",
            "data": data,
            "log": log,
        }
        self.krb5_conf.write_text(KRB5_CONF.format(**values))
        (self.krb5_conf.parent / "kdc.conf").write_text(KDC_CONF.format(**values))
        (data / "acl").touch()
        if not (data / "stash").exists():  # the last file of a new realm
            for file in data.glob("principal*"):
                file.unlink()
            self._run("kdb5_util", "-r", REALM, "create", "-s", "-P", os.urandom(16).hex())
        for name in SERVICE_PRINCIPALS:
            self.add(f"{name}/localhost", "services.localhost")

    def command(self, name: str, java: Java, lib: Path) -> list[str]:
        """Return the command line of the KDC."""
        return [str(_program(lib, "krb5kdc")), "-r", REALM, "-n"]

    def environment(self) -> Mapping[str, str]:
        """Return the variables of the KDC and its tools: their libraries and configuration."""
        plugins = _plugin_directory(self.library())
        return {
            **os.environ,
            **({"LD_LIBRARY_PATH": str(plugins.parents[2])} if plugins is not None else {}),
            "KRB5_CONFIG": str(self.krb5_conf),
            "KRB5_KDC_PROFILE": str(self.krb5_conf.parent / "kdc.conf"),
        }

    def unready_reason(self) -> str | None:
        """Return the reason why the KDC is not ready; None if it listens."""
        return None if is_listening(self.ports["kdc"]) else "the KDC does not listen yet"

    def add(self, principal: str, keytab: str | None = None) -> Path:
        """Create a principal with a random key, and return its keytab; no effect if the keytab has the principal.

        `keytab` is the name of the keytab, by default the principal's first part. Raises ServiceError.
        """
        path = self.keytab(keytab or re.split("[/@]", principal)[0])
        known = path.with_suffix(".principals")
        if principal in (known.read_text().split() if known.exists() else ()):
            return path
        try:
            self.admin("addprinc", "-randkey", principal)
        except ServiceError as e:
            if "already exists" not in str(e):
                raise
        self.admin("ktadd", "-k", str(path), principal)
        with known.open("a") as file:
            file.write(f"{principal}\n")
        return path

    def admin(self, *arguments: str) -> str:
        """Run a command of kadmin on the database, such as `modprinc -allow_tix alice`; return its output.

        Raises ServiceError.
        """
        return self._run("kadmin.local", "-r", REALM, *arguments)

    def kinit(self, principal: str, cache: Path, keytab: Path | None = None) -> None:
        """Store a ticket of a principal, by its keytab or another one, in a ticket cache. Raises ServiceError."""
        path = keytab or (self.service_keytab if "/" in principal else self.keytab(principal))
        self._run("kinit", "-k", "-t", str(path), "-c", f"FILE:{cache}", principal)

    def _run(self, program: str, *arguments: str) -> str:
        command = [str(_program(self.library(), program)), *arguments]
        result = subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=False)
        # kadmin.local exits with 0 after some errors.
        if result.returncode or re.search(
            rf"(?m)^{re.escape(program)}: |^{re.escape(_command(arguments))}: ", result.stderr
        ):
            raise ServiceError(f"{program} {_command(arguments)} failed: {result.stderr.strip()}")
        return result.stdout


def find_programs() -> Path:
    """Return the root directory below which MIT Kerberos is: `/` if it is installed, else a directory of the cache.

    Debian's packages are downloaded into the cache and unpacked, without root. Raises ServiceError.
    """
    if all(_find(Path("/"), name) for name in PROGRAMS):
        return Path("/")
    root = cache_directory() / "kerberos"
    if all(_find(root, name) for name in PROGRAMS):
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ServiceError("there is no MIT KDC: install krb5kdc, kadmin.local and kinit (package krb5-server)")
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="kerberos-", dir=root.parent))
    try:
        _unpack(draft)
        if not all(_find(root, name) for name in PROGRAMS):  # else another process was faster
            shutil.rmtree(root, ignore_errors=True)
            with contextlib.suppress(OSError):
                draft.rename(root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    for name in PROGRAMS:
        _program(root, name)
    return root


def _command(arguments: Sequence[str]) -> str:
    """Return the command among the arguments of a program, such as `ktadd`, without keys and passwords."""
    return next((word for word in arguments[2:] if not word.startswith("-")), "")


def _unpack(root: Path) -> None:
    """Download the packages of a KDC with what they need, and unpack them below `root`. Raises ServiceError."""
    packages = root / "packages"
    packages.mkdir()
    if not _download(packages, []):
        # No or old package lists, as in a container image: get new ones into a directory of this user's.
        lists = root / "apt"
        for folder in ("lists/partial", "cache/archives/partial"):
            (lists / folder).mkdir(parents=True)
        options = ["-o", f"Dir::State::Lists={lists / 'lists'}", "-o", f"Dir::Cache={lists / 'cache'}"]
        _apt([*options, "update"], packages)
        if not _download(packages, options):
            raise ServiceError(f"cannot download {', '.join(PACKAGES)}: install them with `apt-get install`")
        shutil.rmtree(lists, ignore_errors=True)
    for package in packages.glob("*.deb"):
        command = ["dpkg-deb", "-x", str(package), str(root)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ServiceError(f"cannot unpack {package.name}: {result.stderr.strip()}")
    shutil.rmtree(packages)


def _download(directory: Path, options: list[str]) -> bool:
    """Download the packages of a KDC, and those that are missing on this host. Return False if that fails."""
    plan = _apt([*options, "-s", "--no-install-recommends", "install", *PACKAGES], directory)
    if plan is None:
        return False
    missing = [name for name in re.findall(r"^Inst (\S+)", plan, re.MULTILINE) if _NEEDED.search(name)]
    return _apt([*options, "download", *dict.fromkeys([*PACKAGES, *missing])], directory) is not None


def _apt(arguments: list[str], directory: Path) -> str | None:
    """Run apt-get in a directory and return its output; None if it fails."""
    command = ["apt-get", "-q", *arguments]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return None if result.returncode else result.stdout


def _find(root: Path, name: str) -> Path | None:
    """Return the path of a program below a root directory; None if it is not there."""
    paths = (root / directory.lstrip("/") / name for directory in SYSTEM_DIRECTORIES)
    return next((path for path in paths if path.is_file()), None)


def _program(root: Path, name: str) -> Path:
    """Return the path of a program. Raises ServiceError."""
    if (path := _find(root, name)) is None:
        raise ServiceError(f"{root} has no {name}")
    return path


def _plugin_directory(root: Path) -> Path | None:
    """Return the directory of the KDC's database plugins below a root directory; None for installed programs.

    Its third parent has the shared libraries. Raises ServiceError.
    """
    if root == Path("/"):
        return None
    for folder in ("usr/lib", "lib", "usr/lib64"):
        if (file := next((root / folder).glob("*/krb5/plugins/kdb/db2.so"), None)) is not None:
            return file.parent
    raise ServiceError(f"{root} has no krb5/plugins/kdb/db2.so: the KDC has no database")
