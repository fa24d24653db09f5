"""Options of the file channel."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pydantic

from flafka.channels.bounded import BoundedConfig
from flafka.plugins import cross_field_validator, option
from flafka.plugins.options import with_default

SYNCED = "each put is on the disk before it returns; puts at the same time share one sync"
LEAST = 1 << 20
"""Bytes of a file, and of room on a disk; Flume has the same bound for the second."""
CHECKPOINTS = "there is nothing to be written at intervals: a restart reads the log's headers"


class FileChannelConfig(BoundedConfig):
    """Options of the file channel."""

    options_without_effect = MappingProxyType(
        {
            "keep-alive": "a put waits until there is room",
            "checkpointInterval": CHECKPOINTS,
            "checkpointOnClose": CHECKPOINTS,
            "maxCheckpointFileSize": CHECKPOINTS,
            "useDualCheckpoints": "positions are replaced as a whole, and never half written",
            "compressBackupCheckpoint": "positions are replaced as a whole, and never half written",
            "fsyncPerTransaction": SYNCED,
            "fsyncInterval": SYNCED,
            "use-log-replay-v1": CHECKPOINTS,
            "use-fast-replay": CHECKPOINTS,
        }
    )
    checkpoint_dir: str = option(
        "~/.flume/file-channel/checkpoint",
        name="checkpointDir",
        path="flume",
        description="Directory for the positions of the sinks. Each channel needs one of its own.",
    )
    data_dirs: str = option(
        "~/.flume/file-channel/data",
        name="dataDirs",
        path="flume list",
        description="Directories for the events, separated by commas; on several disks they are written in turns.",
    )
    backup_checkpoint_dir: str = option(
        "",
        name="backupCheckpointDir",
        path="flume",
        description="Directory of Flume's second checkpoint. It is read by `agent migrate --import-channel`, "
        "if the first checkpoint is damaged.",
    )
    capacity: int = with_default(BoundedConfig, "capacity", 1_000_000)
    max_file_size: int = option(
        128 << 20,
        name="maxFileSize",
        unit="bytes",
        description="A file of events is closed at this size, and deleted once all of it is delivered. Less than 1 "
        "MiB is 1 MiB.",
    )
    minimum_required_space: int = option(
        500 << 20,
        name="minimumRequiredSpace",
        unit="bytes",
        description="Sources wait while a disk of dataDirs has less room than this. Less than 1 MiB is 1 MiB.",
    )
    encryption: dict[str, str] = option(
        {},
        name="encryption.",
        description="Not supported: with any of these options the agent does not start. Encrypt the disk instead.",
    )

    @pydantic.field_validator("max_file_size", "minimum_required_space")
    @classmethod
    def _at_least(cls, value: int) -> int:
        return max(value, LEAST)

    @cross_field_validator("encryption")
    def _not_encrypted(self) -> None:
        if self.encryption:
            raise ValueError("events are not encrypted here; encrypt the disk instead, or remove these options")

    @cross_field_validator("data_dirs")
    def _somewhere(self) -> None:
        if not self.directories:
            raise ValueError("names no directory")

    @property
    def directories(self) -> list[Path]:
        """Those of the events."""
        return [Path(one.strip()).expanduser() for one in self.data_dirs.split(",") if one.strip()]

    @property
    def checkpoints(self) -> Path:
        """That of the positions."""
        return Path(self.checkpoint_dir.strip()).expanduser()

    @property
    def backup(self) -> Path | None:
        """That of Flume's second checkpoint."""
        written = self.backup_checkpoint_dir.strip()
        return Path(written).expanduser() if written else None
