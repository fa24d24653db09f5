"""Options of an agent (`a1.monitoring.port = 14141`) and of every sink."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import pydantic

from flafka.plugins import Config, Problem, cross_field_validator, option
from flafka.plugins.kafka.config import check_writable_topic
from flafka.plugins.net.tls import TlsServerConfig
from flafka.plugins.problems import suggest

YARN = "yarn"
LOCAL = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?")
STANDALONE = re.compile(r"spark://([^\s,:/]+|\[[^\]]+\]):\d+(,([^\s,:/]+|\[[^\]]+\]):\d+)*")


def format_option_value(value: object) -> str:
    """Return the value of an option as a configuration spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def is_local_master(master: str) -> bool:
    """Return True for a master `local` or `local[n]`, with executors in the driver's JVM on the agent's host."""
    return LOCAL.fullmatch(master) is not None


def parse_master_addresses(master: str) -> list[tuple[str, int]]:
    """Return hosts and ports of `spark://host:port,host:port`, IPv6 without brackets; empty for another master."""
    if not STANDALONE.fullmatch(master):
        return []
    pairs = (address.rpartition(":") for address in master.removeprefix("spark://").split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


class AgentOptions(Config):
    """Options directly below an agent's name, without its lists of components."""

    runner: Literal["local", "spark"] = option(
        "local", name="runner", description="Runner of the sinks that do not set their own with `runner`."
    )
    spark_master: str = option(
        "local[2]",
        name="spark.master",
        description="Spark's master: local[n] (n cores of this host), spark://host:port, yarn (HADOOP_CONF_DIR names "
        "the cluster) or k8s://…. The Python packages that executors on other hosts need are sent to them.",
    )
    spark_trigger_interval: int = option(
        60,
        name="spark.triggerInterval",
        unit="s",
        ge=1,
        description="Interval between the starts of micro-batches. It bounds the age of events at delivery.",
    )
    spark_max_records: int | None = option(
        None,
        name="spark.maxRecordsPerTrigger",
        unit="records",
        ge=1,
        description="Maximum number of Kafka records in one micro-batch of a sink, over all partitions. If unset, "
        "20,000 if the channel's format is arrow, whose records hold up to 30,000 events each, and 500,000 "
        "otherwise.",
    )
    spark_conf: dict[str, str] = option(
        {},
        name="spark.conf.",
        description="Spark's own properties, as in spark.conf.spark.executor.memory = 2g. With spark.archives "
        "or spark.yarn.dist.archives, executors get no Python packages. spark.pyspark.python names their Python.",
    )
    monitoring_type: Literal["http"] = option(
        "http", name="monitoring.type", description="Protocol that serves the metrics."
    )
    monitoring_host: str = option("127.0.0.1", name="monitoring.host", description="Address that serves the metrics.")
    monitoring_port: int = option(
        14141,
        name="monitoring.port",
        ge=0,
        le=65535,
        description="Port that serves the metrics; 0 takes any free port.",
    )
    monitoring_token: pydantic.SecretStr | None = option(
        None,
        name="monitoring.token",
        description="Password of the page at `/`, which shows the agent's settings and metrics. If unset, the page "
        "is served on a loopback address only. Metrics and health need no password.",
    )
    monitoring_ssl: bool | None = option(
        None,
        name="monitoring.ssl",
        description="Serve the page and the metrics over TLS. If unset, they are not encrypted, and the page is "
        "served on a loopback address only. `false` serves it without TLS on any address, behind a proxy that "
        "encrypts.",
    )
    monitoring_keystore: str | None = option(
        None,
        name="monitoring.keystore",
        must_exist=True,
        path="flume",
        description="File with the private key and its certificates: a Java keystore (JKS, PKCS12) or PEM. If unset, "
        "the environment variable FLUME_SSL_KEYSTORE_PATH names it.",
    )
    monitoring_keystore_password: pydantic.SecretStr | None = option(
        None,
        name="monitoring.keystore-password",
        description="Password of the keystore. If unset, the environment variable FLUME_SSL_KEYSTORE_PASSWORD.",
    )
    monitoring_file: str | None = option(
        None,
        name="monitoring.file",
        path="own",
        description="File to which the agent writes its metrics, as JSON, when it stops.",
    )
    deadletters_directory: str | None = option(
        None,
        name="deadletters.directory",
        path="own",
        description="Directory for the dead letters of channels that are not in Kafka. If unset, the agent's state "
        "directory.",
    )
    audit_topic: str | None = option(
        None,
        name="audit.topic",
        min_length=1,
        description="Topic for audit reports, on the brokers of each Kafka channel: the number and a checksum of the "
        "events put into the channel and taken out, for each minute. `agent audit` compares them.",
    )

    @property
    def token(self) -> str:
        """`monitoring.token`; empty if none is set."""
        return self.monitoring_token.get_secret_value() if self.monitoring_token is not None else ""

    @property
    def keystore(self) -> str | None:
        """Path of the keystore: `monitoring.keystore`, else FLUME_SSL_KEYSTORE_PATH. None without TLS."""
        if not self.monitoring_ssl:
            return None
        return self.monitoring_keystore or os.environ.get("FLUME_SSL_KEYSTORE_PATH")

    @property
    def tls(self) -> TlsServerConfig | None:
        """TLS options of the monitoring server; None without TLS."""
        if not self.monitoring_ssl:
            return None
        return TlsServerConfig(
            tls=True, keystore=self.monitoring_keystore, keystore_password=self.monitoring_keystore_password
        )

    def warnings(self) -> Iterator[Problem]:
        """Yield a problem if TLS is on, and the library that reads keystores is missing."""
        if self.tls is not None:
            for problem in self.tls.warnings():
                yield replace(problem, option=f"monitoring.{problem.option}")

    @cross_field_validator("monitoring_keystore", "monitoring_ssl")
    def _check_keystore(self) -> None:
        if self.monitoring_ssl and not self.keystore:
            raise ValueError("is required: monitoring.ssl = true needs a file with a private key and its certificate")

    @pydantic.field_validator("spark_master")
    @classmethod
    def _check_master(cls, value: str) -> str:
        if is_local_master(value) or parse_master_addresses(value) or value == YARN or value.startswith("k8s://"):
            return value
        hint = suggest(value, ["yarn", "local", "local[*]"])
        raise ValueError(f"must be local[n], spark://host:port, yarn or k8s://…, not {value!r}{hint}")

    @pydantic.field_validator("audit_topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        return check_writable_topic(value)

    @pydantic.field_validator("spark_conf")
    @classmethod
    def _check_conf(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not name.startswith("spark."):
                raise ValueError(f"{name}: is no property of Spark: expected spark.conf.spark.…")
            if name == "spark.master":
                raise ValueError(f"{name}: is set with spark.master")
        return value


class SinkErrors(Config):
    """Options of every sink for events that it can never deliver."""

    tolerance: int = option(
        50,
        name="errors.tolerance",
        unit="%",
        ge=0,
        le=100,
        description="Maximum share of the latest events that may be rejected and become dead letters. Above it, as "
        "with a wrong schema, the sink pauses, logs a warning, and retries the events until they are accepted. "
        "`none` pauses at the first rejected event, `all` never.",
    )
    window: int = option(
        1000,
        name="errors.window",
        unit="events",
        gt=0,
        description="Number of latest events for errors.tolerance. After a start, missing events count as delivered.",
    )

    @pydantic.field_validator("tolerance", mode="before")
    @classmethod
    def _parse_tolerance(cls, value: object) -> object:
        if value in ("none", "all"):
            return 0 if value == "none" else 100
        if isinstance(value, str) and not value.isdecimal():
            raise ValueError(f"must be none, all, or a whole number of percent such as 50, not {value!r}")
        return value
