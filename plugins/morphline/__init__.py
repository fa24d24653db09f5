"""Morphlines: chains of commands that transform events, as Kite's library for Java does in Flume.

A component has the options of `MorphlineConfig`, which reads its morphline. The modules of the commands are imported
only when a morphline is read.
"""
