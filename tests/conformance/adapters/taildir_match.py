"""`taildir_match`: file names of a file group."""

import tempfile
from pathlib import Path
from typing import Any

from tests.conformance.adapters.taildir import Run


def op_taildir_match(input: dict[str, Any]) -> Any:
    """Return the files that the source follows."""
    with tempfile.TemporaryDirectory() as directory:
        for name in input["files"]:
            Path(directory, name).write_text(f"{name}\n")
        run = Run({"filegroups": "g", "filegroups.g": f"{{dir}}/{input['pattern']}"}, Path(directory))
        try:
            run.start()
            return {"matched": sorted(event["body"] for event in run.process()["events"])}
        except ValueError as e:
            return {"error": type(e).__name__, "message": str(e)}
        finally:
            run.close()


def normalise(op: str, value: Any) -> Any:
    """Return the value without the message of an error, which is Java's there and ours here."""
    return {"error": True} if "error" in value else value
