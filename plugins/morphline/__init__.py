"""Morphlines: chains of commands that take events apart, as Kite's library for Java runs them in Flume.

A component declares the options of `MorphlineConfig`, which reads its morphline. What executes commands is imported
when a morphline is read.
"""
