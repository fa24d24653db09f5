"""Suite `userguide_completed`: the files of Flume's user guide, in the form of suite `config`."""

from tests.conformance.adapters.config import normalise, op_config

__all__ = ["normalise", "op_config"]
