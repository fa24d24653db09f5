"""Source `http`: events in the bodies of HTTP requests."""

from flafka.sources.http.config import HttpSourceConfig
from flafka.sources.http.source import HttpSource

__all__ = ["HttpSource", "HttpSourceConfig"]
