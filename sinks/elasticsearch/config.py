"""Options of the Elasticsearch sink."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import pydantic

from flafka.plugins import Problem, cross_field_validator, option
from flafka.plugins.java.classes import is_java_class, java_class_error
from flafka.plugins.net.tls import TlsClientConfig
from flafka.plugins.options import with_default
from flafka.sinks.bucketpath import BucketPath
from flafka.sinks.bulk import DocumentsConfig
from flafka.sinks.elasticsearch.documents import SERIALIZERS

HTTP_PORT, TRANSPORT_PORT = 9200, 9300
_PACKAGE = "org.apache.flume.sink.elasticsearch."
_ESCAPES = re.compile(r"%(?:\{[^}]*\}|\[[^\]]*\]|.)")
_NOT_IN_INDEX_NAMES = re.compile(r'[A-Z\\/*?"<>| ,#:]')


class ElasticsearchConfig(TlsClientConfig, DocumentsConfig):
    """Options of the Elasticsearch sink."""

    options_without_effect = MappingProxyType(
        {
            "clusterName": "over HTTP, a client does not need the name of the cluster",
            "client": "events are sent over HTTP, whichever client is named",
            "client.": "events are sent over HTTP, whichever client is named",
            "indexType": "documents have no types: Elasticsearch 8 and OpenSearch 2 have removed them",
            "serializer.": "none of the serializers has options",
            "indexNameBuilder.": "Flume reads none of these: with TimeBasedIndexNameBuilder the date is always "
            "yyyy-MM-dd in UTC. With SimpleIndexNameBuilder, indexName may contain a date of any form",
        }
    )
    check_hostname: bool = option(
        True,
        name="check-hostname",
        description="Require that a server's certificate is for its name or address in `hostNames`.",
    )
    host_names: str = option(
        name="hostNames",
        description="Servers of the cluster, as host, host:port or URL, separated by commas. The default port is "
        "9200. It also replaces Flume's port 9300, which does not speak HTTP.",
    )
    index_name: str = option(
        "flume",
        name="indexName",
        min_length=1,
        description="Index of an event's document. It may contain the same escapes as `hdfs.path`, such as "
        "`%{header}`.",
    )
    index_name_builder: str = option(
        "TimeBasedIndexNameBuilder",
        name="indexNameBuilder",
        description="`TimeBasedIndexNameBuilder` adds `-yyyy-MM-dd` to indexName: the day in UTC of the header "
        "`timestamp` or `@timestamp`, or else of the time of arrival in the channel. `SimpleIndexNameBuilder` adds "
        "nothing. Flume's class names are accepted, too.",
    )
    serializer: str = option(
        "ElasticSearchLogStashEventSerializer",
        name="serializer",
        description="`ElasticSearchLogStashEventSerializer` makes a document with `@message` (the body), `@fields` "
        "(all headers), and `@timestamp`, `@source`, `@type`, `@source_host` and `@source_path` (the headers "
        "`timestamp`, `source`, `type`, `host` and `src_path`, if an event has them). "
        "`ElasticSearchDynamicSerializer` makes one with `body` and a field for each header. In both, a body or "
        "header that is JSON and has a brace among its first 20 bytes is stored as JSON, all others as text, in "
        r"which a byte that is not UTF-8 becomes `\xff`. Flume's class names are accepted, too.",
    )
    batch_size: int = with_default(DocumentsConfig, "batch_size", 100)
    ttl: str | None = option(
        None,
        name="ttl",
        without_effect=True,
        description="servers have removed it with Elasticsearch 5: their policies for the life of an index delete "
        "old documents",
    )

    def hosts(self) -> list[dict[str, Any]]:
        """Return the servers as mappings of `host` and `port`. Elasticsearch's transport port is replaced by 9200."""
        urls = [_address(text) for text in _split(self.host_names)]
        return [
            {"host": url.hostname, "port": HTTP_PORT if url.port in (None, TRANSPORT_PORT) else url.port}
            for url in urls
        ]

    @property
    def addresses(self) -> str:
        """Servers, as named in messages."""
        scheme = "https://" if self.tls else ""
        return ",".join(f"{scheme}{host['host']}:{host['port']}" for host in self.hosts())

    def warnings(self) -> Iterator[Problem]:
        """Yield warnings of a port that is replaced, of documents that are not deleted, and of TLS."""
        yield from super().warnings()
        if any(_address(text).port == TRANSPORT_PORT for text in _split(self.host_names)):
            yield Problem(
                "hostNames",
                f"port {TRANSPORT_PORT} is for a protocol that servers no longer speak: port {HTTP_PORT}, for HTTP, "
                "is used instead",
                replacement={"hostNames": re.sub(rf":{TRANSPORT_PORT}(?![0-9])", f":{HTTP_PORT}", self.host_names)},
            )

        if self.ttl is not None:
            yield Problem("ttl", f"has no effect: {type(self).model_fields['ttl'].description}", replacement={})

    @pydantic.model_validator(mode="before")
    @classmethod
    def _infer_tls(cls, values: dict[str, Any]) -> dict[str, Any]:
        secure = "https://" in str(values.get("hostNames", ""))
        return {**values, "ssl": "true"} if secure and "ssl" not in values else values

    @pydantic.field_validator("host_names")
    @classmethod
    def _check_hosts(cls, value: str) -> str:
        if not _split(value):
            raise ValueError("must name a server, such as es-1:9200")
        for text in _split(value):
            try:
                url = _address(text)
                valid = url.hostname and (url.port or url.port is None) and url.scheme in ("", "http", "https")
            except ValueError:  # of the port
                valid = False
            if not valid or url.path.strip("/") or url.query or url.fragment:
                raise ValueError(f"must be host:port,host:port, or http://host:port, not {text!r}")
            if url.username is not None:
                raise ValueError("must not contain a user: set the options username and password")
        return value

    @cross_field_validator("host_names", "tls")
    def _check_schemes(self) -> None:
        schemes = {_address(text).scheme for text in _split(self.host_names)} - {""}
        if schemes and schemes != {"https" if self.tls else "http"}:
            raise ValueError("must be all https:// with ssl = true, and all http:// without")

    @pydantic.field_validator("index_name")
    @classmethod
    def _check_index_name(cls, value: str) -> str:
        BucketPath(value)
        text = _ESCAPES.sub("", value)
        if wrong := _NOT_IN_INDEX_NAMES.search(text):
            raise ValueError(f"must be in lower case, without {wrong[0]!r}: the servers refuse any other name")
        if text[:1] in tuple("-_+") and value.startswith(text[0]):
            raise ValueError(f"must not begin with {text[0]!r}: the servers refuse such a name")
        return value

    @pydantic.field_validator("index_name_builder")
    @classmethod
    def _check_builder(cls, value: str) -> str:
        return _check_known("index name builder", value, ("TimeBasedIndexNameBuilder", "SimpleIndexNameBuilder"))

    @pydantic.field_validator("serializer")
    @classmethod
    def _check_serializer(cls, value: str) -> str:
        return _check_known("serializer", value, tuple(SERIALIZERS))


def _split(hosts: str) -> list[str]:
    return [text for text in re.split(r"[,;\s]+", hosts) if text]


def _address(text: str) -> Any:
    return urlsplit(text if "://" in text else f"//{text}")


def _check_known(kind: str, value: str, names: Sequence[str]) -> str:
    name = value.removeprefix(_PACKAGE)
    if name in names:
        return name
    if is_java_class(value):
        raise ValueError(java_class_error(f"{kind} of Elasticsearch", value))
    raise ValueError(f"must be {' or '.join(names)}, not {value!r}")
