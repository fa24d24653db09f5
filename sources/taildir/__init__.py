"""Source `taildir`: tails growing files, at-least-once."""

from flafka.sources.taildir.config import TaildirConfig
from flafka.sources.taildir.source import TaildirSource

__all__ = ["TaildirConfig", "TaildirSource"]
