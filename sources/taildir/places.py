"""Index from path to the tracked file that has, or last had, that path."""

from __future__ import annotations

from flafka.sources.taildir.tail import Tail


class Places:
    """Tracked files by path, and by the path that a symbolic link leads to.

    The cost of an update does not depend on the number of files.
    """

    def __init__(self) -> None:
        self._tails: dict[str, list[Tail]] = {}
        """Files by path; the last in each list has that path, or was the last to have it."""
        self._paths: dict[Tail, set[str]] = {}
        """Paths under which each file is in the index."""

    def get(self, path: str) -> Tail | None:
        """Return the file that has, or last had, that path; None where there is none. Thread-safe."""
        tails = self._tails.get(path)
        return tails[-1] if tails else None

    def put(self, tail: Tail) -> None:
        """Add a file, or update it after a change of `path`, `real` or `named`."""
        before, now = self._paths.get(tail, set()), {tail.path, tail.real}
        self._paths[tail] = now
        for path in now:  # replaced atomically: other threads read meanwhile
            self._set(path, [*(other for other in self._tails.get(path, ()) if other is not tail), tail])
        for path in before - now:
            self._set(path, [other for other in self._tails[path] if other is not tail])

    def drop(self, tail: Tail) -> None:
        """Remove a file that is no longer tracked."""
        for path in self._paths.pop(tail, ()):
            self._set(path, [other for other in self._tails[path] if other is not tail])

    def _set(self, path: str, tails: list[Tail]) -> None:
        if not tails:
            del self._tails[path]
            return
        if len(tails) > 1:
            tails.sort(key=lambda tail: tail.named)
            for tail in tails[:-1]:
                tail.replaced = True
        self._tails[path] = tails
