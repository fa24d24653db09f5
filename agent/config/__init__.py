"""A configuration file, in Flume's grammar: read, resolved, checked, built."""

from flafka.agent.config.diagnostics import Diagnostic, Mode
from flafka.agent.config.load import chosen_agent, load

__all__ = ["Diagnostic", "Mode", "chosen_agent", "load"]
