"""A bare consumer and upload in one process: bodies of a topic, one per record, into files on HDFS.

Arguments: `servers topic webhdfs directory form events`. A file has 1,000,000 events. Prints JSON: seconds and CPU
seconds, from the subscription until the last file is closed.
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

EVENTS_PER_FILE = 1_000_000


def main() -> None:
    """Consume and upload the events, and print the result."""
    servers, topic, webhdfs, directory, form, count = sys.argv[1:7]
    total, number = int(count), 0
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": directory,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": 1 << 22,
        }
    )
    cpu, started = _cpu_seconds(), time.perf_counter()
    consumer.subscribe([topic])
    bodies: list[bytes] = [message.value() or b"" for message in consumer.consume(1, 60)]  # the group has joined
    seen = len(bodies)
    while seen < total:
        messages = consumer.consume(min(10_000, total - seen), 1)  # blocks until as many have arrived
        bodies += [message.value() or b"" for message in messages]
        seen += len(messages)
        if len(bodies) >= EVENTS_PER_FILE or seen == total:
            _upload(webhdfs, f"{directory}/{number}", _file(bodies, form))
            number, bodies = number + 1, []
    consumer.commit(asynchronous=False)
    print(json.dumps({"seconds": time.perf_counter() - started, "cpu": _cpu_seconds() - cpu}))
    consumer.close()


def _file(bodies: list[bytes], form: str) -> bytes:
    """Return the content of a file: lines for `text`, or else Parquet with a column `body`."""
    if form == "text":
        return b"\n".join([*bodies, b""])
    file = io.BytesIO()
    pq.write_table(pa.table({"body": pa.array(bodies, pa.binary())}), file, compression="snappy")
    return file.getvalue()


def _upload(webhdfs: str, path: str, data: bytes) -> None:
    """Create a file on HDFS with this content. Raises requests.HTTPError on failure."""
    redirect = requests.put(
        f"http://{webhdfs}/webhdfs/v1{path}?op=CREATE&user.name=flafka", allow_redirects=False, timeout=60
    )
    requests.put(redirect.headers["Location"], data=data, timeout=60).raise_for_status()


def _cpu_seconds() -> float:
    """Return user and system time of this process so far, in seconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
