"""Error texts of Spark's queries: without the IDs that differ at each attempt, and with advice."""

from __future__ import annotations

import re

_QUERY = re.compile(
    r"(?:StreamingQueryException: )?\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: (.*?)"
    r"(?:\s*SQLSTATE: |\n=== Streaming Query|\Z)",
    re.DOTALL,
)
"""Spark's text around the error that ended a query, with IDs that differ at each attempt."""
_STAGE = re.compile(r"Job aborted due to stage failure: Task .*?\(TID \d+\) \(.*?\): ", re.DOTALL)
"""Numbers of stage and task, which differ at each attempt as well."""
_STATE = re.compile(r"\[(?:STATE_STORE_\w*SCHEMA\w*|STREAMING_STATEFUL_OPERATOR_NOT_MATCH\w*)[\w.]*\] ")
_ADVICE = re.compile(r"\s*If you want to force running the query without schema validation.*", re.DOTALL)
"""Spark's advice to disable the schema check, after which it would misread the state."""
_DAMAGED = re.compile(
    r"Incomplete log file|\[CANNOT_LOAD_STATE_STORE|MISSING_STATE_DIRECTORY\]|end-of-input|\Aassertion failed\Z"
)
_PY4J = re.compile(r"(?:Py4JJavaError: )?An error occurred while calling [^\n]*\n: ")
_LOG = re.compile(r"Failed to read log file (\S+)/offsets/(\d+)\. Incomplete log file")


def core_message(failure: str) -> str:
    """Return an error text without Spark's text around it and without IDs of the attempt."""
    match = _QUERY.search(failure)
    return _STAGE.sub("", match[1] if match is not None else failure)


def checkpoint_error(failure: str, directory: str, sink: str) -> str:
    """Return the error for a checkpoint that is damaged or of other code, with advice; empty for other failures.

    `failure` is Spark's error text, `directory` the checkpoint, and `sink` the path of the processor's sink.
    """
    text = core_message(failure)
    advice = f"name another directory with {sink}.checkpoint, where it begins without state at the group's offsets"
    if _STATE.search(text):
        why = " ".join(_ADVICE.sub("", _STATE.sub("", text)).split()).rstrip(".")
        return (
            f"the processor's state in checkpoint {directory} is that of other code: {why}. Undo the change of the "
            f"processor, or {advice}"
        )
    if "Traceback" in text or not _DAMAGED.search(text):
        return ""
    why = _PY4J.sub("", text).splitlines()[0].strip().rstrip(".")
    error = f"checkpoint {directory} is damaged or incomplete: {why}. Restore it from a backup, or {advice}"
    if log := _LOG.search(text):
        file = f"{log[1]}/offsets/{log[2]}"
        error += f". If {log[1]}/commits has no {log[2]}, it is enough to remove {file}: that micro-batch is repeated"
    return error
