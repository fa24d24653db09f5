"""The Spark runner: one supervised PySpark driver, one Structured Streaming query a sink."""
