"""A bare consumer and a bare upload in one process: bodies out of a topic, a record each, into files on HDFS.

`servers topic webhdfs directory form events`; a file of each 1,000,000 events. Prints JSON: seconds and CPU seconds,
from the subscription until the last file is closed.
"""

from __future__ import annotations

import io
import json
import resource
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import requests
from confluent_kafka import Consumer

A_FILE = 1_000_000


def main() -> None:
    """Consume, upload, print."""
    servers, topic, webhdfs, directory, form, count = sys.argv[1:7]
    wanted, number = int(count), 0
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": directory,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 1 << 22,
        }
    )
    cpu, started = _cpu(), time.perf_counter()
    consumer.subscribe([topic])
    bodies: list[bytes] = [message.value() or b"" for message in consumer.consume(1, 60)]  # the group is together
    seen = len(bodies)
    while seen < wanted:
        found = consumer.consume(min(10_000, wanted - seen), 1)  # waits for as many
        bodies += [message.value() or b"" for message in found]
        seen += len(found)
        if len(bodies) >= A_FILE or seen == wanted:
            _upload(webhdfs, f"{directory}/{number}", _file(bodies, form))
            number, bodies = number + 1, []
    consumer.commit(asynchronous=False)
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu": _cpu() - cpu}))
    consumer.close()


def _file(bodies: list[bytes], form: str) -> bytes:
    if form == "text":
        return b"\n".join([*bodies, b""])
    file = io.BytesIO()
    pq.write_table(pa.table({"body": pa.array(bodies, pa.binary())}), file, compression="snappy")
    return file.getvalue()


def _upload(webhdfs: str, path: str, data: bytes) -> None:
    asked = requests.put(
        f"http://{webhdfs}/webhdfs/v1{path}?op=CREATE&user.name=flafka", allow_redirects=False, timeout=60
    )
    requests.put(asked.headers["Location"], data=data, timeout=60).raise_for_status()


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
