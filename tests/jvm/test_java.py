from pathlib import Path

import pytest

from flafka.agent.jvm import ServiceError, java
from flafka.agent.jvm.java import Java, find_java


def fake_java(home: Path, version: str) -> Path:
    """Create a `java` that only prints its version, as OpenJDK does."""
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"""#!/bin/sh\necho 'openjdk version "{version}" 2025-01-01' >&2\n""")
    path.chmod(0o755)
    return path


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_java(tmp_path, "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == Java(path, 21)


@pytest.mark.parametrize("version", ["1.8.0_412", "11.0.2", "24", "25.0.1"])
def test_a_java_that_is_too_old_or_too_new_is_skipped(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path / "home", version)
    path = fake_java(tmp_path / "path", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(path.parent), prepend=":")
    assert find_java() == Java(path, 17)


def test_without_a_suitable_java_the_error_lists_those_found_and_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, none = fake_java(tmp_path, "11.0.2"), tmp_path / "none"
    monkeypatch.setattr(java, "_candidates", lambda: iter([old, none]))
    with pytest.raises(ServiceError, match="no Java 17 to 23") as failure:
        find_java()
    assert f"{old} (Java 11), {none} (does not run)" in str(failure.value)
    assert "flafka[sandbox]" in str(failure.value)
