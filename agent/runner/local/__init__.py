"""Runners of sources, channels and sinks on threads of the agent."""
