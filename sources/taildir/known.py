"""Which files are known: those that were found, and those of the position file that were not found yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from sources.taildir.tail import Key, Tail


class Known:
    """All files that a source follows or would go on with, by device and inode."""

    def __init__(self, saved: Iterable[Tail], log: logging.Logger) -> None:
        """`saved` is what the position file names."""
        self._log = log
        self.found: dict[Key, Tail] = {}
        """Those that were found since the start."""
        self._saved: dict[int, list[Tail]] = {}
        """By inode, files of the position file that were not found since the start; by 0, what files once were."""
        for tail in saved:
            self._save(tail)

    def __iter__(self) -> Iterator[Tail]:
        """All of them, those not found again included: what the position file names."""
        yield from self.found.values()
        for tails in self._saved.values():
            yield from tails

    def is_found(self, tail: Tail) -> bool:
        """Whether that file was found, and was not forgotten since."""
        return self.found.get(_key(tail)) is tail

    def drop(self, tail: Tail) -> None:
        """It is no longer among those that are found, or are to be."""
        if self.is_found(tail):
            del self.found[_key(tail)]
        elif tail in (known := self._saved.get(tail.inode, [])):
            known.remove(tail)

    def keep_former(self, tail: Tail) -> Tail:
        """What that file held before it was emptied or replaced, which a copy may hold."""
        former = tail.former()
        self._save(former)
        return former

    def recall(self, key: Key, path: str, fd: int | None = None) -> Tail | None:
        """The file of the position file that this is; it is no longer among those to be found.

        Its content decides, unless name, device and inode agree. `fd` is the file, where it is open already. Raises
        OSError where its content cannot be read.
        """
        device, inode = key
        known = self._saved.get(inode, [])
        for tail in sorted(known, key=lambda t: (t.path != path, t.device not in (None, device))):
            sure = tail.path == path and tail.device in (None, device)
            # What was opened already is compared already.
            if (fd is None and sure) or tail.is_at(path, fd):
                self.tell_unproved(tail, path)
                known.remove(tail)
                tail.device = device
                if tail.path != path:
                    tail.move(path)
                return tail
        return None

    def not_found(self) -> list[Tail]:
        """Files of the position file that were not found since the start, as a list of its own."""
        return [tail for inode, tails in self._saved.items() if inode for tail in tails]

    def missing(self) -> list[Tail]:
        """Files that are gone, with the rest of what they held, and whose copies can be told by their bytes."""
        saved = (tail for tails in self._saved.values() for tail in tails if not tail.inode or tail.deleted)
        found = (tail for tail in self.found.values() if tail.fd is None and tail.deleted)
        return [tail for tail in (*saved, *found) if tail.provable and tail.mark is not None]

    def tell_unproved(self, tail: Tail, path: str) -> None:
        """The inode, and a line that ends at the position, are all that says that it has that name now."""
        if tail.mark is None and tail.path != path and tail.position:
            self._log.warning(
                "%s is read from byte %d on: the position file has that for its inode, under the name %s;"
                " nothing else proves that it is the same file",
                path,
                tail.position,
                tail.path,
            )

    def _save(self, tail: Tail) -> None:
        self._saved.setdefault(tail.inode, []).append(tail)


def _key(tail: Tail) -> Key:
    return tail.device or 0, tail.inode
