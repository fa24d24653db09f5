"""A model of HDFS behind WebHDFS, as a NameNode 3.4 shows it."""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from tests.simulator.http import Answer, answered
from tests.simulator.world import World

PREFIX = "/webhdfs/v1"
DATANODES = ("datanode-1", "datanode-2")
WRITES = {"CREATE", "MKDIRS", "RENAME", "DELETE"}
SIGNED = bytes(n ^ 128 for n in range(256))
BLOCK_BYTES = 1 << 20
CACHED = 1000
"""Paths whose parents and names are known: the same ones come again and again."""
_parent, _unquoted = lru_cache(CACHED)(posixpath.dirname), lru_cache(CACHED)(unquote)


class Tree:
    """Directories and files, and what each operation makes of them: an HTTP status, and what the JSON says."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock` gives milliseconds since the epoch."""
        self.files: dict[str, bytes] = {}
        self.directories = {"/"}
        self.changed: dict[str, int] = {}
        """Modification times of files and directories."""
        self.clock = clock
        self.full: set[str] = set()
        """Directories of which a quota is reached: nothing can be renamed into them."""

    def execute(self, op: str, path: str, options: dict[str, Any], data: bytes = b"") -> tuple[int, Any]:
        """Execute an operation and return the answer; a DataNode executes CREATE and OPEN."""
        if (above := self._file_above(path)) is not None:
            return error(403, "ParentNotDirectoryException", f"{above} (is not a directory)")
        answer: tuple[int, Any] = getattr(self, f"_{op.lower()}")(path, options, data)
        return answer

    def write(self, path: str, data: bytes) -> None:
        """A file of that content, with the directories above it, whatever was there."""
        self.make_directories(_parent(path))
        self.files[path] = data
        self._touch(path)

    def remove(self, path: str) -> bool:
        """Remove a file, or a directory with all in it. Whether there was one."""
        if path == "/" or (path not in self.files and path not in self.directories):
            return False
        for removed in self._below(path):
            self.files.pop(removed, None)
            self.changed.pop(removed, None)
            self.directories.discard(removed)
        self.changed[_parent(path)] = self.clock()
        return True

    def rename(self, source: str, target: str) -> bool:
        """Atomic; False where the target is there or lies nowhere. One that is a directory means a place in it."""
        if target in self.directories:
            target = posixpath.join(target, posixpath.basename(source))
        if source == "/" or (source not in self.files and source not in self.directories):
            return False
        if target == source:
            return True
        if target in self.files or target in self.directories or target.startswith(f"{source}/"):
            return False
        if _parent(target) not in self.directories:
            return False
        for path in self._below(source):
            moved = target + path[len(source) :]
            if path in self.files:
                self.files[moved] = self.files.pop(path)
            else:
                self.directories.discard(path)
                self.directories.add(moved)
            self.changed[moved] = self.changed.pop(path, 0)
        self.changed[_parent(source)] = self.changed[_parent(target)] = self.clock()
        return True

    def make_directories(self, path: str) -> None:
        """Create a directory and its parents."""
        while path not in self.directories:
            self.directories.add(path)
            self._touch(path)
            path = _parent(path)

    def _touch(self, path: str) -> None:
        self.changed[path] = self.changed[_parent(path)] = self.clock()

    def _below(self, path: str) -> list[str]:
        """Delete a path recursively."""
        if path in self.files:
            return [path]
        within = f"{path}/"
        return [p for p in (*self.files, *self.directories) if p == path or p.startswith(within)]

    def _file_above(self, path: str) -> str | None:
        above = _parent(path)
        while above not in self.directories:
            if above in self.files:
                return above
            above = _parent(above)
        return None

    def _status(self, path: str, suffix: str) -> dict[str, Any]:
        is_file = path in self.files
        return {
            "pathSuffix": suffix,
            "type": "FILE" if is_file else "DIRECTORY",
            "length": len(self.files[path]) if is_file else 0,
            "modificationTime": self.changed.get(path, 0),
        }

    # --- by the operation's name

    def _create(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if path in self.directories:
            return error(403, "FileAlreadyExistsException", f"{path} already exists as a directory")
        if path in self.files and options.get("overwrite") != "true":
            return error(403, "FileAlreadyExistsException", f"{path} for client 127.0.0.1 already exists")
        self.write(path, data)
        return 201, None

    def _open(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if path not in self.files:
            what = "Path is not a file" if path in self.directories else "File does not exist"
            return error(404, "FileNotFoundException", f"{what}: {path}")
        return 200, self.files[path]

    def _mkdirs(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if path in self.files:
            return error(403, "FileAlreadyExistsException", f"Path is not a directory: {path}")
        self.make_directories(path)
        return 200, {"boolean": True}

    def _rename(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        target = options["destination"]
        if (above := self._file_above(target)) is not None:
            return error(403, "ParentNotDirectoryException", f"{above} (is not a directory)")
        if full := next(
            (directory for directory in self.full if target == directory or target.startswith(f"{directory}/")), None
        ):
            return error(403, "NSQuotaExceededException", f"The NameSpace quota of directory {full} is exceeded")
        return 200, {"boolean": self.rename(path, target)}

    def _delete(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if options.get("recursive") != "true" and path in self.directories and len(self._below(path)) > 1:
            return error(403, "PathIsNotEmptyDirectoryException", f"`{path} is non empty': Directory is not empty")
        return 200, {"boolean": self.remove(path)}

    def _checkaccess(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if path not in self.files and path not in self.directories:
            return error(404, "FileNotFoundException", f"Path not found: {path}")
        return 200, None

    def _getfilestatus(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if path not in self.files and path not in self.directories:
            return error(404, "FileNotFoundException", f"File does not exist: {path}")
        return 200, {"FileStatus": self._status(path, "")}

    def _liststatus(self, path: str, options: dict[str, Any], data: bytes) -> tuple[int, Any]:
        if path in self.files:
            statuses = [self._status(path, "")]
        elif path in self.directories:
            within = f"{path.rstrip('/')}/"
            start = len(within)
            below = [p[start:] for p in (*self.files, *self.directories) if p.startswith(within) and p != within]
            names = sorted((name for name in below if "/" not in name), key=_order)
            statuses = [self._status(within + name, name) for name in names]
        else:
            return error(404, "FileNotFoundException", f"File {path} does not exist.")
        return 200, {"FileStatuses": {"FileStatus": statuses}}


class Hdfs:
    """HDFS with one NameNode, for all sessions of a simulation.

    Calls for faults are named `hdfs.` with `rename`, `mkdirs`, `delete`, `status`, `list`, `access`, `upload` and
    `read`. The NameNode's redirection of an upload or a reading to a DataNode is no call of its own: it changes
    nothing, and what may become of it may become of the transfer.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.tree = Tree(lambda: int(world.wall() * 1000))
        self.away = False
        """Set to have nobody listen, at any of its servers."""
        world.models["hdfs"] = self

    # --- for stories

    def files(self, prefix: str = "/") -> dict[str, bytes]:
        """Paths and contents."""
        return {path: data for path, data in sorted(self.tree.files.items()) if path.startswith(prefix)}

    def visible(self, prefix: str = "/") -> dict[str, bytes]:
        """The files that readers see."""
        return {path: data for path, data in self.files(prefix).items() if "/.flafka/" not in path}

    def put(self, path: str, data: bytes) -> None:
        """Somebody writes a file."""
        self.world.log(f"somebody writes {path}")
        self.tree.write(path, data)

    def remove(self, path: str) -> bool:
        """Somebody deletes a file, or a directory with all in it."""
        self.world.log(f"somebody deletes {path}")
        return self.tree.remove(path)

    def fill(self, path: str, seconds: float) -> None:
        """A quota of this directory is reached, and raised after so long."""
        self.world.log(f"the quota of {path} is reached")
        self.tree.full.add(path)
        self.world.later(seconds, lambda: self.tree.full.discard(path))

    def move(self, source: str, target: str) -> bool:
        """Somebody renames it."""
        self.world.log(f"somebody renames {source} to {target}")
        return self.tree.rename(source, target)

    # --- as a server

    def request(self, method: str, url: str, params: dict[str, Any], options: dict[str, Any]) -> Answer:
        """Answer a request of a session of `requests`."""
        server, _, tail = url.partition(PREFIX)
        quoted, _, query = tail.partition("?")
        path = _unquoted(quoted) or "/"
        if len(path) > 1:
            path = path.rstrip("/")
        if query:
            return self._transfer(query, path, url, options)
        op = params["op"]
        tree = self.tree
        if op in ("CREATE", "OPEN"):
            if self.away:
                return answered(_CALLS[op], url, options, _nothing, away=True)
            if op == "OPEN" and path not in tree.files and path not in tree.directories:
                # Said by the NameNode; the reading that does not come about is asked about here.
                return answered(_CALLS[op], url, options, lambda: Answer(*tree.execute(op, path, params)))
            excluded = str(params.get("excludedatanodes", "")).split(",")
            datanode = next((name for name in DATANODES if name not in excluded), DATANODES[0])
            query = f"op={op}&overwrite={params.get('overwrite', 'false')}"
            return Answer(307, b"", f"{server.partition('://')[0]}://{datanode}:9864{PREFIX}{quoted}?{query}")
        return answered(
            _CALLS[op],
            url,
            options,
            lambda: Answer(*tree.execute(op, path, params)),
            refuse=lambda number: _refusal(op, number),
            away=self.away,
            on=params.get("destination", path),
        )

    def _transfer(self, query: str, path: str, url: str, options: dict[str, Any]) -> Answer:
        given = dict(item.split("=") for item in query.split("&"))
        op, tree, cut = given["op"], self.tree, None
        data = b""
        if op == "CREATE":

            def cut() -> None:
                tree.execute(op, path, given, data[: len(data) // 2])

            body = options.get("data") or b""
            if isinstance(body, bytes):
                data = body
            else:
                try:
                    while piece := body.read(BLOCK_BYTES):
                        data += piece
                except BaseException:
                    # A client that breaks off leaves what it has sent, in a file that looks as if it were whole.
                    tree.execute(op, path, given, data)
                    raise
        return answered(
            _CALLS[op],
            url,
            options,
            lambda: Answer(*tree.execute(op, path, given, data)),
            refuse=lambda number: _refusal(op, number),
            cut=cut,
            away=self.away,
            on=path,
        )


_CALLS = {
    "CREATE": "hdfs.upload",
    "OPEN": "hdfs.read",
    "RENAME": "hdfs.rename",
    "MKDIRS": "hdfs.mkdirs",
    "DELETE": "hdfs.delete",
    "GETFILESTATUS": "hdfs.status",
    "LISTSTATUS": "hdfs.list",
    "CHECKACCESS": "hdfs.access",
}


def _order(name: str) -> bytes:
    """A NameNode sorts names by their bytes, which are signed in Java."""
    return name.encode().translate(SIGNED)


def _nothing() -> Answer:
    raise AssertionError("nobody listens")


def _refusal(op: str, number: int) -> Answer:
    """Refusal of a NameNode in safe mode, which allows reads, or of a standby one."""
    if op in WRITES and number % 2:
        return Answer(*error(403, "SafeModeException", f"Cannot {op.lower()}. Name node is in safe mode."))
    text = f"Operation category {'WRITE' if op in WRITES else 'READ'} is not supported in state standby."
    return Answer(*error(403, "StandbyException", text))


def error(status: int, kind: str, message: str) -> tuple[int, Any]:
    """A refusal as Hadoop words it."""
    return status, {"RemoteException": {"exception": kind, "message": message, "javaClassName": kind}}
