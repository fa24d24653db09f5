"""The source `spooldir`: reads files that are put into a directory, each of them once."""

from sources.spooldir.config import SpooldirConfig
from sources.spooldir.source import SpooldirSource

__all__ = ["SpooldirConfig", "SpooldirSource"]
