"""YARN as the cluster manager of an agent's Spark; `agent.onyarn` imports it for `spark.master = yarn` alone."""
