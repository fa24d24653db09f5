"""Source `taildir`: tails growing files, at-least-once."""

from sources.taildir.config import TaildirConfig
from sources.taildir.source import TaildirSource

__all__ = ["TaildirConfig", "TaildirSource"]
