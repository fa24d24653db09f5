"""The source `http`: events in the bodies of requests."""

from flafka.sources.http.config import HttpSourceConfig
from flafka.sources.http.source import HttpSource

__all__ = ["HttpSource", "HttpSourceConfig"]
