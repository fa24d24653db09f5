"""Generator of `locks/*.lock` from `poms/*.xml`, for developers: `./dev lock`. Needs Maven and the network.

Maven resolves the versions once, here. Users download exactly these jars, so that no other resolution can combine
versions that were never tested together.
"""

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from flafka.agent.jvm.jars import LOCKS, Jar

POMS = Path(__file__).parent / "poms"
FLATTEN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"


def flatten(pom: Path) -> list[Jar]:
    """Return all runtime dependencies of a POM, sorted. Raises CalledProcessError if Maven fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mvn", "-q", "-B", "-f", str(pom), FLATTEN, "-DincludeScope=runtime"]
        command += [f"-DoutputDirectory={folder}", "-Dmdep.useRepositoryLayout=true"]
        # Maven before 3.9 ignores its own variable MAVEN_ARGS.
        subprocess.run([*command, *shlex.split(os.environ.get("MAVEN_ARGS", ""))], check=True)
        return sorted(_jar(path, Path(folder)) for path in Path(folder).rglob("*.jar"))


def _jar(path: Path, repository: Path) -> Jar:
    *group, artifact, version, name = path.relative_to(repository).parts
    classifier = name.removeprefix(f"{artifact}-{version}").removesuffix(".jar").removeprefix("-")
    content = path.read_bytes()
    return Jar(".".join(group), artifact, version, classifier, hashlib.sha256(content).hexdigest(), len(content))


def main() -> None:
    """Rewrite the lock of each POM, and print number and size of its jars. Needs the network."""
    for pom in sorted(POMS.glob("*.xml")):
        jars = flatten(pom)
        lines = [f"# From poms/{pom.name} by ./dev lock. coordinates, sha256, bytes", *map(str, jars)]
        (LOCKS / f"{pom.stem}.lock").write_text("\n".join(lines) + "\n")
        print(f"{pom.stem}: {len(jars)} jars, {sum(jar.size for jar in jars) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
