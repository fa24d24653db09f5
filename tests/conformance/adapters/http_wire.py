"""`http_wire`: a request over the wire, and its answer."""

import http.client
import json
import re
from typing import Any

from flafka.channels.memory import MemoryChannel, MemoryConfig
from tests.sources.test_http import Running


def op_http_wire(input: dict[str, Any]) -> Any:
    """Return status and presence of a body. `[ N events ] with channel …` describes body and channel in prose."""
    body, channel = input["body"], None
    if body and (match := re.fullmatch(r"\[ (\d+) events \] with channel transactionCapacity (\d+)", body)):
        body = json.dumps([{"headers": {}, "body": str(number)} for number in range(int(match[1]))])
        config, problems = MemoryConfig.parse({"capacity": match[2], "transactionCapacity": match[2]})
        assert config is not None, problems
        channel = MemoryChannel(config)
    with Running(channel=channel, requestTimeout="1000") as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.source.port, timeout=20)
        connection.request(input["method"], input["path"], body and body.encode(), input["headers"])
        answer = connection.getresponse()
        result = {"status": answer.status, "reply_body_empty": not answer.read()}
        connection.close()
        if channel is not None:
            channel.stopping.set()
        return result


def normalise(op: str, value: dict[str, Any]) -> Any:
    """Return the compared parts."""
    return {name: value.get(name) for name in ("status", "reply_body_empty")}
