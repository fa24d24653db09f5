"""Source `spooldir`: reads files that are put into a directory, at least once."""

from flafka.sources.spooldir.config import SpooldirConfig
from flafka.sources.spooldir.source import SpooldirSource

__all__ = ["SpooldirConfig", "SpooldirSource"]
