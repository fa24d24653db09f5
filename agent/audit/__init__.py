"""Audit of completeness: sums of the events put and delivered, and comparison of stores with a topic."""
