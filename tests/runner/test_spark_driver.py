"""What the Spark driver says of failures."""

from agent.runner.spark.driver import reason

WRAPPED = """StreamingQueryException: [STREAM_FAILED] Query [id = 4d29] terminated with exception: Reason: \
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "sinks/hdfs/sink.py", line 7, in stage
    raise Retry("the disk is full")
plugins.errors.Retry: the disk is full

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
JVM stacktrace:
"""


def test_a_failure_in_python_is_told_by_what_python_said() -> None:
    assert reason(WRAPPED) == "Retry: the disk is full"


def test_a_failure_of_spark_itself_is_told_by_its_first_lines() -> None:
    assert (
        reason("AnalysisException: no such table\n  here\n\nat java\n...") == "AnalysisException: no such table here "
    )
