"""Packages for Debian and RPM systems: Debian's are tried in a clean root, the other one is only unpacked."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.release.building import OUTPUT, ROOT, UV, VERSION, interpreters
from tests.release.report import Report, directory_bytes, megabytes, run

DEBIAN_PYTHONS = {"12": "3.11", "13": "3.13"}
"""Debian release → minor version of its Python."""
SUITES = {"12": "bookworm", "13": "trixie"}
RPM_PYTHON = "3.11"
EXTRAS = "avro,elasticsearch,hbase,hdfs,morphlines,solr,tls"
"""Extras in the packages: all except PySpark, which is larger than the others together, and `dev`."""
NFPM = "github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2"
TOOLS = ROOT / "build" / "tools"
LIBRARY = "/usr/lib/flafka"
LAUNCHER = f"""#!{LIBRARY}/bin/python3
from flafka.__main__ import main

main()
"""
LIFECYCLE = Path(__file__).with_name("lifecycle.sh")
USELESS = ("pyarrow/include", "pyarrow/tests", "numpy/tests", "numpy/*/tests")
"""Directories of libraries that no server needs: headers, and tests of the libraries."""


def build_deb(report: Report, wheel: Path, directory: Path, release: str) -> Path | None:
    """Build the package for a Debian release; return None if a tool is missing or the build fails."""
    python = DEBIAN_PYTHONS[release]
    name = OUTPUT / f"flafka_{VERSION}-1~deb{release}_amd64.deb"
    return _build(report, name, wheel, directory, python, f"1~deb{release}")


def build_rpm(report: Report, wheel: Path, directory: Path) -> Path | None:
    """Build the package for RPM systems; return None if a tool is missing or the build fails."""
    return _build(report, OUTPUT / f"flafka-{VERSION}-1.x86_64.rpm", wheel, directory, RPM_PYTHON, "1")


def try_deb(report: Report, deb: Path, directory: Path, release: str) -> None:
    """Install, upgrade, run, remove and purge the package in a clean root of its Debian release."""
    text = f"lives in a clean Debian {release}"
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        report.untried(deb, text, "this needs root and debootstrap (apt-get install debootstrap)")
        return
    root, before = directory / f"debian-{release}", directory / f"before-{release}.deb"
    with report.check(deb, f"has an earlier version for the upgrade in Debian {release}"):
        tree = _tree_of(directory, DEBIAN_PYTHONS[release])
        configuration = tree / "agent.conf"
        default = configuration.read_text()
        configuration.write_text(f"# The default before.\n{default}")
        _package(tree, before, DEBIAN_PYTHONS[release], f"1~deb{release}", version=f"{VERSION}~before")
        configuration.write_text(default)
        make_root(release, root)
        shutil.copy(before, root / "tmp" / "before.deb")
        shutil.copy(deb, root / "tmp" / "new.deb")
        shutil.copy(LIFECYCLE, root / "tmp")
    if report.rows[-1].result == "failed":
        return
    # Namespaces of its own: what the script leaves running, and its ports, end with it.
    inside = "ip link set lo up; mount -t proc proc $0/proc; exec chroot $0 sh /tmp/lifecycle.sh $1"
    isolated = [
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--net",
        "sh",
        "-c",
        inside,
        str(root),
        VERSION,
    ]
    done = subprocess.run(
        isolated, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, errors="replace"
    )
    steps = done.stdout.split("== ")[1:] or [done.stdout]
    for number, step in enumerate(steps, 1):
        title, _, output = step.partition("\n")
        with report.check(deb, f"{title}, in Debian {release}"):
            assert number < len(steps) or done.returncode == 0, output
    shutil.rmtree(root)


def try_rpm(report: Report, rpm: Path, directory: Path) -> None:
    """Unpack the package, and compare its files and scripts with what went into it."""
    report.untried(rpm, "lives on an RPM system", "there is none here, the package is only unpacked")
    if shutil.which("rpm") is None:
        report.untried(rpm, "unpacks", "rpm is not installed (apt-get install rpm)")
        return
    with report.check(rpm, "has intact digests"):
        run("rpm", "--checksig", "--nosignature", rpm)
    with report.check(rpm, "requires the Python of its libraries"):
        assert f"python{RPM_PYTHON}" in run("rpm", "-qp", "--requires", rpm).split()
    with report.check(rpm, "keeps changed configuration files"):
        assert run("rpm", "-qp", "--configfiles", rpm).split() == ["/etc/default/flafka", "/etc/flafka/agent.conf"]
    with report.check(rpm, "unpacks to the files of its tree"):
        root = directory / "rpm-root"
        root.mkdir()
        run("rpm", "--root", root, "--install", "--nodeps", "--noscripts", rpm)
        made = _tree_of(directory, RPM_PYTHON) / "usr"
        assert _names(root / "usr" / "lib" / "flafka") - {"flume", "flume/bin", "flume/bin/flume-ng"} == _names(
            made / "lib" / "flafka"
        )
        assert _names(made / "share") <= _names(root / "usr" / "share")


def make_root(release: str, root: Path) -> None:
    """Make a directory with a minimal Debian and its Python. The first one of a release is kept in build/tools."""
    kept = TOOLS / f"debian-{release}"
    if not kept.exists():
        draft = TOOLS / f"debian-{release}.new"
        shutil.rmtree(draft, ignore_errors=True)
        python = f"python{DEBIAN_PYTHONS[release]}"
        run("debootstrap", "--variant=minbase", f"--include={python},libstdc++6,passwd", SUITES[release], draft)
        draft.rename(kept)
    run("cp", "--archive", kept, root)


def _build(report: Report, file: Path, wheel: Path, directory: Path, python: str, release: str) -> Path | None:
    """Build a package for a version of Python, and check what all packages have; None after a failure."""
    text = f"is built with the libraries for Python {python}"
    if python not in interpreters():
        report.untried(file.name, text, "no such interpreter is installed here")
        return None
    if shutil.which("go") is None and not (TOOLS / "nfpm").exists():
        report.untried(file.name, text, "nfpm needs Go (apt-get install golang)")
        return None
    file.unlink(missing_ok=True)
    with report.check(file, text):
        tree = _tree_of(directory, python)
        if not tree.exists():
            build_tree(wheel, python, tree)
        _package(tree, file, python, release)
    if not file.exists():
        return None
    report.fact(file, f"unpacks to {megabytes(directory_bytes(tree))}")
    return file


def _tree_of(directory: Path, python: str) -> Path:
    return directory / f"tree-{python}"


def build_tree(wheel: Path, python: str, root: Path) -> None:
    """Fill a directory with what the packages for one version of Python install."""
    library = root / "usr" / "lib" / "flafka"
    site = library / "lib" / f"python{python}" / "site-packages"
    site.mkdir(parents=True)
    interpreter, requirement = interpreters()[python], f"flafka[{EXTRAS}] @ {wheel.as_uri()}"
    # manylinux_2_28: libraries for the C library of Debian 12 and of RPM systems of its age.
    target = ("--python-version", python, "--python-platform", "x86_64-manylinux_2_28", "--target", site)
    run(*UV, "pip", "install", "--python", interpreter, "--link-mode", "copy", *target, requirement)
    shutil.rmtree(site / "bin", ignore_errors=True)  # scripts that name the interpreter of this machine
    (site / ".lock").unlink(missing_ok=True)
    for pattern in USELESS:
        for useless in site.glob(pattern):
            shutil.rmtree(useless)
    installed = f"{LIBRARY}/lib/python{python}/site-packages"
    # Bytecode that is never compared with its source, and which dpkg removes as it has brought it.
    compiling = ("-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", site, "-p", installed)
    # The code fails for files that libraries have for other versions of Python.
    subprocess.run([interpreter, *compiling, site], capture_output=True, check=False)
    commands = library / "bin"
    commands.mkdir()
    (commands / "python3").symlink_to(f"/usr/bin/python{python}")
    (commands / "agent").write_text(LAUNCHER)
    (commands / "agent").chmod(0o755)
    settings = ("home = /usr/bin", "include-system-site-packages = false", f"version = {python}")
    (library / "pyvenv.cfg").write_text("\n".join(settings) + "\n")
    _write_share(root / "usr" / "share")
    (root / "flafka.service").write_text(unit())
    shutil.copy(ROOT / "conf/package/agent.conf", root)


def unit() -> str:
    """Return the systemd unit with the paths of the packages, without the hints for an installation by hand."""
    text = (ROOT / "conf/systemd/agent.service").read_text()
    _, head, rest = text.partition("[Unit]")
    return (head + rest).replace("/opt/flafka/", f"{LIBRARY}/")


def _write_share(share: Path) -> None:
    """Write man pages, completion, the grammar for editors, licence and changelog."""
    run(sys.executable, ROOT / "docs" / "packagefiles.py", share)
    for page in (share / "man").rglob("*.1"):
        page.with_name(f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))
        page.unlink()
    documents = share / "doc" / "flafka"
    documents.mkdir(parents=True)
    shutil.copy(ROOT / "LICENSE", documents / "copyright")
    shutil.copy(ROOT / "CHANGELOG.md", documents)


def _package(tree: Path, file: Path, python: str, release: str, version: str = VERSION) -> None:
    """Pack a tree into the package of that name."""
    variables = {"VERSION": version, "RELEASE": release, "PYTHON": python, "ROOT": str(tree)}
    kind = file.suffix.removeprefix(".")
    command = (_nfpm(), "package", "--config", "conf/package/nfpm.yaml", "--packager", kind, "--target", file)
    run(*command, cwd=ROOT, env={**os.environ, **variables})


def _nfpm() -> Path:
    """Return the path of nfpm, which Go builds at the first call, in some minutes."""
    if not (TOOLS / "nfpm").exists():
        TOOLS.mkdir(parents=True, exist_ok=True)
        print("building nfpm, once", flush=True)
        run("go", "install", NFPM, env={**os.environ, "GOBIN": str(TOOLS)})
    return TOOLS / "nfpm"


def _names(directory: Path) -> set[str]:
    """Return the paths of all files and directories below a directory."""
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}
