"""Monitoring of a running agent: metrics, health, the page, and taps."""
