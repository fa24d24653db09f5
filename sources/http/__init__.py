"""The source `http`: events in the bodies of requests."""

from sources.http.config import HttpSourceConfig
from sources.http.source import HttpSource

__all__ = ["HttpSource", "HttpSourceConfig"]
