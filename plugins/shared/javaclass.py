"""What a user is told where a configuration names a Java class of its own."""

from __future__ import annotations

import re

TABLE = "docs/migrating-from-flume.md has what takes the place of known ones"
_CLASS = re.compile(r"[a-zA-Z_]\w*(?:\.[a-zA-Z_$][\w$]*)+")


def is_java_class(name: str) -> bool:
    """Whether it is spelled as a Java class with its package is."""
    return _CLASS.fullmatch(name) is not None


def cannot_run(kind: str, name: str) -> str:
    """A sentence that names the class, what kind of thing it is, and what to start from.

    `kind` is `source`, `sink`, `interceptor`, or what an interceptor takes the place of (`serializer`, `handler` …).
    """
    if "twitter" in name.lower() and kind == "source":
        way = (
            "it reads Twitter's streaming API of version 1.1, which was switched off in 2023: a source in Python "
            f"that reads X's API of version 2 may have its name: `agent template source {name}` prints one to "
            "start from"
        )
    elif kind in ("source", "sink", "interceptor"):
        way = f"a {kind} in Python may have its name: `agent template {kind} {name}` prints one to start from"
        way = way.replace("a interceptor", "an interceptor")
    else:
        way = f"{_INSTEAD.get(kind, _BODIES)}: `agent template interceptor` prints one to start from"
    return f"the {kind} {name} is a Java class, which cannot run here; {way}; {TABLE}"


_BODIES = "an interceptor in Python can make bodies of what it writes, for serializer = TEXT"
_INSTEAD = {
    "handler": "take handler = blob or ndjson, and an interceptor in Python that makes events of the bodies",
    "deserializer": "take deserializer = LINE, and an interceptor in Python that makes events of the lines",
    "serializer of Elasticsearch": "an interceptor in Python can make the headers that become fields",
    "index name builder of Elasticsearch": "an interceptor in Python can make a header that indexName names",
    "serializer of HBase": "an interceptor in Python can make headers, for rowKey and serializer.depositHeaders",
}
