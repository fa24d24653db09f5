"""Suite `userguide_completed`: the files of Flume's user guide, in the form of suite `config`."""

from tests.conformance.adapters.config import agree, op_config

__all__ = ["agree", "op_config"]
