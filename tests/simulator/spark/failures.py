"""Error texts of PySpark, Py4J and Spark's connector to Kafka."""

from __future__ import annotations

import traceback

CONTEXT_STOPPED = (
    "An error occurred while calling o1.readStream.\n: java.lang.IllegalStateException: "
    "Cannot call methods on a stopped SparkContext."
)


class StreamingQueryException(Exception):
    """A query failed; its text holds all that went before, in Python and in Java."""


class Py4JJavaError(Exception):
    """Java failed at what Python asked for."""


Py4JJavaError.__module__ = "py4j.protocol"


class Stopped(Exception):
    """The query is stopped within its function."""


class JavaError(Exception):
    """Error of an executor's JVM."""


def data_loss(text: str) -> str:
    return (
        f"[KAFKA_DATA_LOSS] {text} Some data may have been lost because they are not available in Kafka any more; "
        "either the data was aged out by Kafka or the topic may have been deleted before all the data in the topic "
        "was processed. If you don't want your streaming query to fail on such cases, set the source option "
        "failOnDataLoss to false."
    )


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error))


def failure_of_task(error: Exception) -> str:
    """Failure of a task as the JVM reports it."""
    if isinstance(error, JavaError):
        return str(error)
    return (
        "org.apache.spark.api.python.PythonException: Traceback (most recent call last):\n"
        f'  File "worker.py", line 1, in process\n{_trace(error)}\n\tat org.apache.spark.api.python.PythonRunner\n'
    )


def failure_of_function(error: Exception) -> str:
    """Failure of the driver's function as the JVM reports it."""
    return (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        f'  File "py4j/clientserver.py", line 644, in _call_proxy\n{_trace(error)}'
    )
