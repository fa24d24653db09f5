"""`line_deserializer`: the bytes of a file → bodies."""

import base64
import tempfile
from typing import Any

from flafka.sources.spooldir import SpooldirConfig
from flafka.sources.spooldir.content import FileContent, SkipFile
from flafka.sources.spooldir.deserializers import make_deserializer


def op_line_deserializer(input: dict[str, Any]) -> Any:
    """Return the lines, or the error of an unreadable file."""
    data = base64.b64decode(input["data_b64"]) if "data_b64" in input else input["data"].encode()
    properties = {f"deserializer.{name}": value for name, value in input["config"].items()}
    properties |= {name: value for name, value in input.items() if name in ("inputCharset", "decodeErrorPolicy")}
    config, problems = SpooldirConfig.parse({"spoolDir": "/", **properties})
    if config is None:
        return {"error": "configuration", "message": str(problems)}
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        content = FileContent(file.name, decompress=False)
        try:
            reader = make_deserializer(config, content, 0)
            bodies: list[bytes] = []
            while (piece := reader.read(100, 1 << 16)) is not None:
                bodies += piece.bodies.to_pylist()
        except SkipFile as e:
            return {"error": "Skip", "message": str(e)}
        finally:
            content.close()
    return {"bodies": [body.decode("utf-8", "replace") for body in bodies]}


def normalise(op: str, value: Any) -> Any:
    """Return the value without the messages of errors."""
    return {"error": True} if "error" in value else value
