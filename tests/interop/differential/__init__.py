"""Search for differences from Apache Flume 1.11: drawn inputs go through its own classes and through ours.

An `Operation` draws inputs from a seed and runs ours; `java/Differences.java` runs Flume's class. Where the answers
differ, a `Known` of that operation must hold and name the sentence of the documentation; anything else fails.

`python -m tests.interop.differential OPERATION… [--inputs N] [--seed N]` searches and prints its findings.
"""
