"""The source `taildir`: follows growing files and loses nothing."""

from sources.taildir.config import TaildirConfig
from sources.taildir.source import TaildirSource

__all__ = ["TaildirConfig", "TaildirSource"]
