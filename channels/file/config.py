"""Options of the file channel."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import pydantic

from flafka.channels.bounded import BoundedConfig
from flafka.plugins import cross_field_validator, option
from flafka.plugins.options import with_default

SYNCED = "each put is on the disk before it returns; concurrent puts share one sync"
MIN_BYTES = 1 << 20
"""Minimum of maxFileSize and minimumRequiredSpace. Flume has the same minimum for the second."""
CHECKPOINTS = "no checkpoint is written at intervals: a restart reads the headers of the log"


class FileChannelConfig(BoundedConfig):
    """Options of the file channel."""

    options_without_effect = MappingProxyType(
        {
            "keep-alive": "a put waits until there is space",
            "checkpointInterval": CHECKPOINTS,
            "checkpointOnClose": CHECKPOINTS,
            "maxCheckpointFileSize": CHECKPOINTS,
            "useDualCheckpoints": "the checkpoint is replaced atomically",
            "compressBackupCheckpoint": "the checkpoint is replaced atomically",
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
        description="Directory for the committed offsets of the sinks. Each channel needs its own.",
    )
    data_dirs: str = option(
        "~/.flume/file-channel/data",
        name="dataDirs",
        path="flume list",
        description="Directories for the events, separated by commas, such as one for each disk. Files alternate "
        "over them.",
    )
    backup_checkpoint_dir: str = option(
        "",
        name="backupCheckpointDir",
        path="flume",
        description="Directory of Flume's second checkpoint. `agent migrate --import-channel` reads it if the first "
        "checkpoint is damaged.",
    )
    capacity: int = with_default(BoundedConfig, "capacity", 1_000_000)
    max_file_size: int = option(
        128 << 20,
        name="maxFileSize",
        unit="bytes",
        description="Size at which a data file is closed. The file is deleted once its events are delivered. Values "
        "below 1 MiB count as 1 MiB.",
    )
    minimum_required_space: int = option(
        500 << 20,
        name="minimumRequiredSpace",
        unit="bytes",
        description="Sources wait while a disk of dataDirs has less free space than this. Values below 1 MiB count "
        "as 1 MiB.",
    )
    encryption: dict[str, str] = option(
        {},
        name="encryption.",
        description="Not supported: with any of these options the agent does not start. Encrypt the disk instead.",
    )

    @pydantic.field_validator("max_file_size", "minimum_required_space")
    @classmethod
    def _at_least(cls, value: int) -> int:
        return max(value, MIN_BYTES)

    @cross_field_validator("encryption")
    def _not_encrypted(self) -> None:
        if self.encryption:
            raise ValueError("encryption is not supported; encrypt the disk instead, and remove these options")

    @cross_field_validator("data_dirs")
    def _has_directories(self) -> None:
        if not self.directories:
            raise ValueError("names no directory")

    @property
    def directories(self) -> list[Path]:
        """Data directories, in the order of dataDirs."""
        return [Path(name.strip()).expanduser() for name in self.data_dirs.split(",") if name.strip()]

    @property
    def checkpoints(self) -> Path:
        """Directory of the checkpoint."""
        return Path(self.checkpoint_dir.strip()).expanduser()

    @property
    def backup(self) -> Path | None:
        """Directory of Flume's second checkpoint; None if unset."""
        directory = self.backup_checkpoint_dir.strip()
        return Path(directory).expanduser() if directory else None
