"""YARN as the cluster manager of Spark. `agent/onyarn.py` imports it only for `spark.master = yarn`."""
