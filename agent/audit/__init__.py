"""Audit of completeness: sums of the events put and delivered, and stores compared with a topic."""
