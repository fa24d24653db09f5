"""Processors to start from: what `agent new` makes others of."""
