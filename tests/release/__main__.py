"""`./dev release [STEP …]`: build what is handed out, below build/release, and check it where its users have it.

A step that lacks a tool or an interpreter says so, and counts as untried, never as passed.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.release.building import (
    OUTPUT,
    TRIED_PYTHONS,
    VERSION,
    Distributions,
    allowed_pythons,
    build,
    clashing_distribution,
    contents,
    copy_tracked_files,
    interpreters,
    pip_environment,
    sdist_names,
    user_environment,
    uv_environment,
)
from tests.release.inventory import measure_extras, write_inventory
from tests.release.packages import DEBIAN_PYTHONS, build_deb, build_rpm, try_deb, try_rpm
from tests.release.report import Report, run

OWN_NAMES = """
import importlib.metadata, channels, flafka.channels
assert channels.OTHERS and flafka.channels.__name__ == "flafka.channels"
files = importlib.metadata.files("flafka")
names = {file.parts[0] for file in files}
print(*sorted(name for name in names if name != ".." and not name.endswith(".dist-info")))
"""


def main() -> None:
    """Run all steps, or those named, and print the table of what they have made and checked."""
    parser = argparse.ArgumentParser(prog="./dev release", description=__doc__)
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"{', '.join(STEPS)}; by default all, in this order")
    names = parser.parse_args().steps or list(STEPS)
    if unknown := [name for name in names if name not in STEPS]:
        parser.error(f"no step {unknown[0]}: the steps are {', '.join(STEPS)}")
    report = Report()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="flafka-release-") as temporary:
        directory = Path(temporary)
        copy_tracked_files(directory / "source")
        built = build(directory / "source", directory)
        wheel = Path(shutil.copy(built.wheel, OUTPUT))
        sdist = Path(shutil.copy(built.sdist, OUTPUT))
        for name in names:
            print(f"== {name}", flush=True)
            STEPS[name](report, Distributions(wheel, sdist, built.wheel_from_sdist), directory)
    print()
    report.show()
    print(f"\nThe files are in {OUTPUT}.")
    sys.exit(1 if report.has_failed else 0)


def check_wheel(report: Report, built: Distributions, directory: Path) -> None:
    """Check the files of wheel and source distribution."""
    with report.check(built.wheel, "holds the same files as the wheel of the source distribution"):
        assert contents(built.wheel) == contents(built.wheel_from_sdist)
    with report.check(built.wheel, "has no top-level name but flafka"):
        names = {name.partition("/")[0] for name in contents(built.wheel)}
        assert names == {"flafka", f"flafka-{VERSION}.dist-info"}, names
    with report.check(built.sdist, "holds tracked files only"):
        tracked = {str(file.relative_to(directory / "source")) for file in (directory / "source").rglob("*")}
        stray = sdist_names(built.sdist) - tracked - {"PKG-INFO", ".gitignore"}
        assert not stray, stray


def check_pythons(report: Report, built: Distributions, directory: Path) -> None:
    """Install the wheel by pip and by uv on each Python, beside a distribution with a package `channels`."""
    other = clashing_distribution(directory / "channels")
    for version in allowed_pythons():
        text = f"runs on Python {version}, beside another package `channels`, installed by"
        python = interpreters().get(version)
        if python is None:
            reason = "no such interpreter is installed here"
            report.untried(built.wheel, f"runs on Python {version}", reason)
            continue
        for tool, environment in (("pip", pip_environment), ("uv", uv_environment)):
            with report.check(built.wheel, f"{text} {tool}"):
                home = directory / f"{tool}-{version}"
                installed = environment(home / "venv", str(built.wheel), str(other), python=python)
                _try_environment(installed, home)
            shutil.rmtree(home, ignore_errors=True)


def _try_environment(environment: Path, home: Path) -> None:
    """Run the command and the imports of an environment as a user without a checkout."""
    options = {"cwd": home, "env": user_environment(home)}
    agent = environment / "bin" / "agent"
    assert run(agent, "--version", **options) == f"agent, version {VERSION}\n"
    (quickstart,) = environment.glob("lib/*/site-packages/flafka/agent/conf/quickstart.conf")
    run(agent, "check", "-c", quickstart, **options)
    names = run(environment / "bin" / "python", "-c", OWN_NAMES, **options).split()
    assert names == ["flafka"], names


def make_debs(report: Report, built: Distributions, directory: Path) -> None:
    """Build a package for each Debian release; install, upgrade, run, remove and purge it in a clean root."""
    for release in DEBIAN_PYTHONS:
        deb = build_deb(report, built.wheel, directory, release)
        if deb is not None:
            try_deb(report, deb, directory, release)


def make_rpm(report: Report, built: Distributions, directory: Path) -> None:
    """Build a package for RPM systems, and unpack it; there is none here to install it on."""
    rpm = build_rpm(report, built.wheel, directory)
    if rpm is not None:
        try_rpm(report, rpm, directory)


def make_inventory(report: Report, built: Distributions, directory: Path) -> None:
    """Write the bill of materials and the licences of all dependencies."""
    write_inventory(report, built.wheel, directory)


def measure(report: Report, built: Distributions, directory: Path) -> None:
    """Measure what each extra adds to an installation."""
    measure_extras(report, built.wheel, directory)


STEPS: dict[str, Callable[[Report, Distributions, Path], None]] = {
    "wheel": check_wheel,
    "python": check_pythons,
    "deb": make_debs,
    "rpm": make_rpm,
    "sbom": make_inventory,
    "sizes": measure,
}

assert {*TRIED_PYTHONS} <= {*allowed_pythons()}

if __name__ == "__main__":
    main()
