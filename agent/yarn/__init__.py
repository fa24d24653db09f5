"""YARN as the cluster manager of an agent's Spark; `agent/onyarn.py` imports it for `spark.master = yarn` alone."""
