"""Which of the files that are followed is under a path, or was there last."""

from __future__ import annotations

from sources.taildir.tail import Tail


class Places:
    """Files by their paths, and by those that symbolic links lead to.

    What it costs to put one does not depend on how many there are.
    """

    def __init__(self) -> None:
        self._tails: dict[str, list[Tail]] = {}
        """By path, all files of that path; the last of them is there now, or else was there last."""
        self._paths: dict[Tail, set[str]] = {}
        """Where each was put."""

    def get(self, path: str) -> Tail | None:
        """The file that is there now, or was there last. Any thread."""
        tails = self._tails.get(path)
        return tails[-1] if tails else None

    def put(self, tail: Tail) -> None:
        """It has come, or its paths, or whether a name leads to it, are others now."""
        before, now = self._paths.get(tail, set()), {tail.path, tail.real}
        self._paths[tail] = now
        for path in now:  # others may ask meanwhile: it is missing at no moment
            self._set(path, [*(other for other in self._tails.get(path, ()) if other is not tail), tail])
        for path in before - now:
            self._set(path, [other for other in self._tails[path] if other is not tail])

    def drop(self, tail: Tail) -> None:
        """It is followed no longer."""
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
