"""Reader of configuration files in Flume's grammar: parses, resolves, checks and builds an agent."""

from flafka.agent.config.diagnostics import Diagnostic, Mode
from flafka.agent.config.load import chosen_agent, load

__all__ = ["Diagnostic", "Mode", "chosen_agent", "load"]
