"""File channel of Apache Flume 1.11 in a Java program, and random stories of it.

`python -m tests.interop.filechannels` rewrites `tests/data/flume_file_channel`, which has its own description.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from pathlib import Path

from flafka.agent.flumechannel import files as flume
from flafka.agent.services.running import until
from tests.interop.jvm import Application

DATA = Path(__file__).parents[1] / "data/flume_file_channel"
DIRECTORIES = ("checkpoint", "backup", "a", "b", "c")


class FileChannels(Application):
    """`java/FileChannels.java`: one channel of Flume's at a time."""

    name = "FileChannels"
    jars = "flume"


class Story:
    """Puts, takes, commits, rollbacks, checkpoints, restarts and kills in random order, in Flume's own classes, and
    the expected contents of the channel."""

    def __init__(self, program: FileChannels, directory: Path, seed: int) -> None:
        self.program, self.seed = program, seed
        self.random = random.Random(seed)
        self.home = directory / "0"
        self.directory = directory
        self.copies = 0
        self.count = self.random.choice([1, 1, 2, 3])
        """Number of data directories."""
        self.dual = self.random.choice(["", "", "useDualCheckpoints=true", "useDualCheckpoints=true packed"])
        self.inside: list[str] = []
        """Bodies that are in the channel."""
        self.open: dict[str, tuple[str, list[str]]] = {}
        """Operation and bodies by transaction."""
        self.number = 0

    def run(self, steps: int = 120) -> None:
        """Run all steps, with a kill at the end."""
        self.start()
        for _ in range(steps):
            self.step()
        self.kill()
        self.program.request("close")
        shutil.rmtree(self.directory)

    def start(self) -> None:
        paths = {name: self.home / name for name in DIRECTORIES}
        for path in paths.values():
            path.mkdir(parents=True, exist_ok=True)
        data = ",".join(str(paths[name]) for name in DIRECTORIES[2 : 2 + self.count])
        options = f"checkpointDir={paths['checkpoint']} backupCheckpointDir={paths['backup']} dataDirs={data}"
        options += " capacity=60 transactionCapacity=60 keep-alive=0 checkpointInterval=3600000"
        options += f" maxFileSize=20000 minimumRequiredSpace=1048576 {self.dual.replace('packed', '')}"
        options += " compressBackupCheckpoint=true" * ("packed" in self.dual)
        assert self.program.request("open " + " ".join(options.split())) == "opened"

    def step(self) -> None:
        verb = self.random.choices(
            ["begin", "put", "take", "commit", "rollback", "checkpoint", "kill", "restart"],
            [3, 12, 6, 6, 1, 1.5, 0.4, 0.3],
        )[0]
        getattr(self, verb)()

    def begin(self) -> None:
        if free := [name for name in "stuvw" if name not in self.open]:
            assert self.program.request(f"begin {free[0]}") == "done"
            self.open[free[0]] = ("", [])

    def put(self) -> None:
        if names := [name for name, (kind, _) in self.open.items() if kind != "take"]:
            name, body = self.random.choice(names), str(self.number)
            self.number += 1
            if self.program.request(f"put {name} {body} {self.random.choice([0, 100, 3000])}") == "done":
                self.open[name] = ("put", [*self.open[name][1], body])

    def take(self) -> None:
        if names := [name for name, (kind, _) in self.open.items() if kind != "put"]:
            name = self.random.choice(names)
            answer = self.program.request(f"take {name}")
            if answer != "nothing" and not answer.startswith("failed"):
                self.open[name] = ("take", [*self.open[name][1], answer])

    def commit(self) -> None:
        self._end("commit")

    def rollback(self) -> None:
        self._end("rollback")

    def _end(self, command: str) -> None:
        if self.open:
            name = self.random.choice([*self.open])
            kind, bodies = self.open.pop(name)
            if self.program.request(f"{command} {name}") == "done" and command == "commit":
                if kind == "put":
                    self.inside += bodies
                else:
                    self.inside = [body for body in self.inside if body not in bodies]

    def checkpoint(self) -> None:
        self.program.request("checkpoint")  # Flume refuses while it copies the checkpoint before

    def restart(self) -> None:
        if self.program.request("close") == "stuck":
            self.home = self.copy()
        self.open.clear()
        self.start()

    def copy(self) -> Path:
        """Copy the files as they are now, as a kill would leave them."""
        self.copies += 1
        to = self.directory / str(self.copies)
        shutil.copytree(self.home, to, ignore=shutil.ignore_patterns("in_use.lock"))
        return to

    def kill(self) -> None:
        directory = self.copy()
        if self.random.random() < 0.3:  # in the middle of a checkpoint
            with (directory / "checkpoint" / "checkpoint").open("r+b") as file:
                file.seek(4 * 8)
                file.write((1).to_bytes(8, "big"))
        self.program.request("close")
        self.open.clear()
        self.home = directory
        ours = self.read(directory)
        self.start()
        theirs = self.program.request("drain").split()[1:]
        assert {*ours} <= {*theirs}, (self.seed, ours, theirs)
        assert sorted(ours) == sorted(self.inside), (self.seed, ours, self.inside)

    def read(self, directory: Path) -> list[str]:
        data = [directory / name for name in DIRECTORIES[2 : 2 + self.count]]
        channel = flume.FlumeChannel(directory / "checkpoint", directory / "backup", data)
        bodies = []
        for event in channel.events():
            body = event.body.decode().rstrip("_")
            assert event.headers == {"n": body, "schön": "grüße 😀"}
            bodies.append(body)
        assert channel.damages == []
        return bodies


# --- recorded files

OPTIONS = (
    "open checkpointDir={0}/checkpoint backupCheckpointDir={0}/backup dataDirs={1} capacity=20 keep-alive=0 "
    "transactionCapacity=20 checkpointInterval=3600000 minimumRequiredSpace=1048576 {2}"
)
RECORDED = {
    # Only records: the checkpoint is the empty one of the start.
    "records": (
        "{0}/a",
        "",
        "begin s, put s 1 0, put s 2 50, commit s, begin s, put s 3 0, rollback s, begin s, put s 4 0, put s 5 0, "
        "commit s, begin t, take t, commit t, begin u, put u 6 0, begin t, take t",
        ["2", "4", "5"],
    ),
    # Two directories, and two transactions, a put and a take, that are open at the checkpoint.
    "checkpoint": (
        "{0}/a,{0}/b",
        "useDualCheckpoints=true compressBackupCheckpoint=true",
        "begin s, put s 1 0, begin t, put t 2 0, put t 3 0, commit t, begin u, take u, checkpoint, commit s, "
        "begin v, put v 4 0, commit v, begin w, take w, commit w, begin t, put t 5 0",
        ["2", "1", "4"],
    ),
    # The put is in one directory's file, its take in the other's, which the checkpoint makes unnecessary.
    "taken": (
        "{0}/a,{0}/b",
        "",
        "begin s, put s 1 0, put s 2 0, commit s, begin t, take t, commit t, checkpoint",
        ["2"],
    ),
}
"""By name: dataDirs, more options, commands, and the remaining bodies of the channel."""


def record(program: FileChannels) -> None:
    """Write the files that tests without Java read."""
    with tempfile.TemporaryDirectory() as directory:
        for name, (data, options, commands, bodies) in RECORDED.items():
            home = f"{directory}/{name}"
            opened = OPTIONS.format(home, data.format(home), options)
            for command in (" ".join(opened.split()), *commands.split(", ")):
                # A checkpoint is refused while the one before is copied.
                until(lambda: not program.request(command).startswith("failed"), command)
            if "backup" in options.lower():
                until((Path(home) / "backup/backupComplete").exists, "the copy of the checkpoint")
            to = DATA / name
            shutil.rmtree(to, ignore_errors=True)
            shutil.copytree(home, to, ignore=shutil.ignore_patterns("in_use.lock", "queueset"))
            for log in to.glob("*/log-?"):
                log.write_bytes(log.read_bytes().rstrip(b"\x80") + b"\x80" * 64)
            (to / "bodies.json").write_text(json.dumps(bodies) + "\n")
            program.request("close")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as classes, FileChannels(Path(classes)) as flumes:
        record(flumes)
