"""Mutants, and the schedules that find them."""

from typing import NamedTuple


class Mutant(NamedTuple):
    """One guard taken away."""

    name: str
    guard: str
    """Behaviour that the mutant lacks."""
    sinks: tuple[str, ...]
    """Sinks or sources with schedules that find the mutant."""
    file: str
    old: str
    new: str
    story: str = ""
    """The test that finds it, of `test_stories.py` where no file is named: where it takes more to coincide than comes
    about by chance, or what schedules do not have: other sinks, another cluster, an owner that sleeps for days."""


OVERTAKEN = "tests/simulator/test_overtaken_stories.py"
"""The stories of commits that are overtaken."""
HDFS, KAFKA, SOLR = ("hdfs",), ("kafka",), ("solr",)
TAILDIR, OVERFLOWS = ("taildir",), ("overflow",)
SOURCES = (*TAILDIR, *OVERFLOWS)
"""Subjects of schedules without a sink."""
EXACTLY_ONCE = ("hdfs", "kafka")
ALL = ("hdfs", "kafka", "solr")
ON_HDFS = ("hdfs", "spark-hdfs")
SPARK = ("spark-hdfs", "spark-kafka", "spark-solr")
