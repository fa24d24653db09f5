"""A model of Spark's Structured Streaming, as far as the driver's queries use it.

A query reads offsets, plans a micro-batch and calls the driver's function on a thread of the driver's process. Its
tasks run on executors, processes of their own: they get pickled copies, fail and are tried again, and may be running
still when another attempt has taken their place.
"""

from tests.simulator.spark.connector import Topics
from tests.simulator.spark.query import limited
from tests.simulator.spark.session import Spark

__all__ = ["Spark", "Topics", "limited"]
