"""The source `http`: events in the bodies of requests."""

from sources.http.config import HttpConfig
from sources.http.source import HttpSource

__all__ = ["HttpConfig", "HttpSource"]
