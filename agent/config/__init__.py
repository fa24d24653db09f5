"""A configuration file, in Flume's grammar: read, resolved, checked, built."""

from agent.config.diagnostics import Diagnostic, Mode
from agent.config.load import chosen_agent, load

__all__ = ["Diagnostic", "Mode", "chosen_agent", "load"]
