"""Failures of Spark's queries in words: without what differs at each attempt, and with the way out."""

from __future__ import annotations

import re

_QUERY = re.compile(
    r"(?:StreamingQueryException: )?\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: (.*?)"
    r"(?:\s*SQLSTATE: |\n=== Streaming Query|\Z)",
    re.DOTALL,
)
"""Spark's words around what made a query fail. The ids between them are others at each attempt."""
_STAGE = re.compile(r"Job aborted due to stage failure: Task .*?\(TID \d+\) \(.*?\): ", re.DOTALL)
"""Numbers of the stage and the task, which are others at each attempt, too."""
_STATE = re.compile(r"\[(?:STATE_STORE_\w*SCHEMA\w*|STREAMING_STATEFUL_OPERATOR_NOT_MATCH\w*)[\w.]*\] ")
_ADVICE = re.compile(r"\s*If you want to force running the query without schema validation.*", re.DOTALL)
"""Spark's advice to switch the check off, after which it reads the state as what it is not."""
_DAMAGED = re.compile(
    r"Incomplete log file|\[CANNOT_LOAD_STATE_STORE|MISSING_STATE_DIRECTORY\]|end-of-input|\Aassertion failed\Z"
)
_PY4J = re.compile(r"(?:Py4JJavaError: )?An error occurred while calling [^\n]*\n: ")
_LOG = re.compile(r"Failed to read log file (\S+)/offsets/(\d+)\. Incomplete log file")


def core(failure: str) -> str:
    """Return the text of a failure without Spark's words around it and without ids of the attempt."""
    found = _QUERY.search(failure)
    return _STAGE.sub("", found[1] if found is not None else failure)


def of_checkpoint(failure: str, directory: str, sink: str) -> str:
    """Return what is wrong with a processor's checkpoint, and the way out; empty where it is something else."""
    text = core(failure)
    another = f"name another directory with {sink}.checkpoint, where it begins without state at the group's offsets"
    if _STATE.search(text):
        why = " ".join(_ADVICE.sub("", _STATE.sub("", text)).split()).rstrip(".")
        return (
            f"the processor's state in checkpoint {directory} is that of other code: {why}. Undo the change of the "
            f"processor, or {another}"
        )
    if "Traceback" in text or not _DAMAGED.search(text):
        return ""
    why = _PY4J.sub("", text).splitlines()[0].strip().rstrip(".")
    out = f"checkpoint {directory} is damaged or incomplete: {why}. Restore it from a backup, or {another}"
    if log := _LOG.search(text):
        file = f"{log[1]}/offsets/{log[2]}"
        out += f". If {log[1]}/commits has no {log[2]}, it is enough to remove {file}: that micro-batch is done again"
    return out
