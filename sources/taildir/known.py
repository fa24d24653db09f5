"""Known files: tracked files, and entries of the position file that were not found yet."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator

from flafka.sources.taildir.cursors import Cursor
from flafka.sources.taildir.tail import Key, Tail


class Known:
    """Index of known files, by device and inode."""

    def __init__(self, saved: Iterable[Cursor], log: logging.Logger) -> None:
        """Begin with the files of the stored cursors."""
        self._log = log
        self.found: dict[Key, Tail] = {}
        """Tracked files that were found since the start."""
        self._saved: dict[int, list[Tail]] = {}
        """Entries of the position file that were not found since the start, by inode.

        Key 0 has the former states of truncated or replaced files.
        """
        last = 0
        for cursor in saved:
            last = max(last, cursor.id)
            self._save(Tail.of(cursor))
        self._ids = itertools.count(last + 1)

    def __iter__(self) -> Iterator[Tail]:
        """Iterate over all known files: the entries for the position file."""
        yield from self.found.values()
        for tails in self._saved.values():
            yield from tails

    def new_id(self) -> int:
        """Return an ID for a new cursor."""
        return next(self._ids)

    def is_found(self, tail: Tail) -> bool:
        """Return True if the file was found since the start, and was not forgotten since."""
        return self.found.get(_key(tail)) is tail

    def drop(self, tail: Tail) -> None:
        """Remove the file from the index, if it is there."""
        if self.is_found(tail):
            del self.found[_key(tail)]
        elif tail in (known := self._saved.get(tail.inode, [])):
            known.remove(tail)

    def keep_former(self, tail: Tail) -> Tail:
        """Save the former state of a truncated or replaced file, which a rotated copy may have; return it."""
        former = tail.former(self.new_id())
        self._save(former)
        return former

    def recall(self, key: Key, path: str, fd: int | None = None) -> Tail | None:
        """Return the entry of the position file for the file at `path`, and take it out of those not found.

        None where no entry proves to be that file. The content decides, unless path and device agree with the entry.
        `fd` is a descriptor of the file, if it is open already. Raises OSError where its content cannot be read.
        """
        device, inode = key
        known = self._saved.get(inode, [])
        for tail in sorted(known, key=lambda t: (t.path != path, t.device not in (None, device))):
            sure = tail.path == path and tail.device in (None, device)
            # `Tail.hold` does not compare the content, as `Tail.open` does: compare it here if the file is open.
            if (fd is None and sure) or tail.is_at(path, fd):
                self.tell_unproved(tail, path)
                known.remove(tail)
                tail.device = device
                if tail.path != path:
                    tail.move(path)
                return tail
        return None

    def not_found(self) -> list[Tail]:
        """Return a new list of entries of the position file that were not found since the start."""
        return [tail for inode, tails in self._saved.items() if inode for tail in tails]

    def missing(self) -> list[Tail]:
        """Return files that are gone, and whose rotated copies can be identified by their content."""
        saved = (tail for tails in self._saved.values() for tail in tails if not tail.inode or tail.deleted)
        found = (tail for tail in self.found.values() if tail.fd is None and tail.deleted)
        return [tail for tail in (*saved, *found) if tail.provable and tail.mark is not None]

    def tell_unproved(self, tail: Tail, path: str) -> None:
        """Log a warning where little proves that the file now has the name `path`.

        An offset that Flume wrote comes without a fingerprint: only the inode, and a line that ends at the offset,
        agree.
        """
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
