"""Samples of stored formats: `<release>/<group>/<file>` beside this module."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def sample(release: str, name: str) -> dict[str, str]:
    """Return the files of a group of formats as a release has written them; those with base64 end in `.base64`."""
    return {file.name: file.read_text() for file in sorted((HERE / release / name).iterdir())}


def releases(name: str) -> list[str]:
    """Return the releases with samples of a group of formats, oldest first."""
    found = [path.parent.name for path in HERE.glob(f"*.*.*/{name}")]
    return sorted(found, key=lambda release: [int(part) for part in release.split(".")])
