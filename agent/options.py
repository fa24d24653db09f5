"""Options that the agent itself reads: of an agent as a whole (`a1.monitoring.port = 14141`), and of every sink."""

from __future__ import annotations

import re
from typing import Literal

import pydantic

from flafka.plugins import Config, option
from flafka.plugins.kafka.config import own_topic
from flafka.plugins.problems import suggestion

YARN = "yarn"
LOCAL = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?")
STANDALONE = re.compile(r"spark://([^\s,:/]+|\[[^\]]+\]):\d+(,([^\s,:/]+|\[[^\]]+\]):\d+)*")


def as_written(value: object) -> str:
    """Return the text that a configuration has for a value of an option."""
    if isinstance(value, bool):
        return str(value).lower()
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def is_local(master: str) -> bool:
    """Whether Spark's executors are the agent's own host, in the driver's JVM."""
    return LOCAL.fullmatch(master) is not None


def masters(master: str) -> list[tuple[str, int]]:
    """Hosts and ports of `spark://host:port,host:port`; none of another kind of master."""
    if not STANDALONE.fullmatch(master):
        return []
    pairs = (address.rpartition(":") for address in master.removeprefix("spark://").split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


class AgentOptions(Config):
    """What may stand directly under an agent's name, besides its lists."""

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
        description="Time between the starts of two micro-batches, and so how old events get before delivery.",
    )
    spark_max_records: int | None = option(
        None,
        name="spark.maxRecordsPerTrigger",
        unit="records",
        ge=1,
        description="Maximum number of Kafka records in one micro-batch of a sink, over all partitions. If unset, "
        "20,000 if the channel's format is arrow, whose records hold up to 10,000 events each, and 500,000 "
        "otherwise.",
    )
    spark_conf: dict[str, str] = option(
        {},
        name="spark.conf.",
        description="Spark's own properties, as in spark.conf.spark.executor.memory = 2g. If you set spark.archives "
        "or spark.yarn.dist.archives, nothing is packed for the executors. spark.pyspark.python names their Python.",
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
        description="Port that serves the metrics; 0 takes a free one.",
    )
    monitoring_token: pydantic.SecretStr | None = option(
        None,
        name="monitoring.token",
        description="Password of the page at `/`, which shows the agent's settings and figures. Without it the page "
        "is served on a loopback address only. The metrics and the health are served without it.",
    )
    monitoring_file: str | None = option(
        None,
        name="monitoring.file",
        path="own",
        description="File that gets the metrics, as JSON, when the agent stops.",
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
        description="Topic, on the brokers of each Kafka channel, that gets the number and a checksum of the events "
        "that sources have put into the channel and sinks have taken out, for each minute. `agent audit` compares "
        "them.",
    )

    @property
    def token(self) -> str:
        """`monitoring.token`; empty if none is set."""
        return self.monitoring_token.get_secret_value() if self.monitoring_token is not None else ""

    @pydantic.field_validator("spark_master")
    @classmethod
    def _check_master(cls, value: str) -> str:
        if is_local(value) or masters(value) or value == YARN or value.startswith("k8s://"):
            return value
        near = suggestion(value, ["yarn", "local", "local[*]"])
        raise ValueError(f"must be local[n], spark://host:port, yarn or k8s://…, not {value!r}{near}")

    @pydantic.field_validator("audit_topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        return own_topic(value)

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
    """What a sink of any type does about events that it can never deliver."""

    tolerance: int = option(
        50,
        name="errors.tolerance",
        unit="%",
        ge=0,
        le=100,
        description="Share of the latest events that may be rejected. Rejected events become dead letters. If more "
        "are rejected, as with a wrong schema, the sink pauses instead, logs it, and offers the events again until "
        "they are accepted. `none` pauses at the first one, `all` never.",
    )
    window: int = option(
        1000,
        name="errors.window",
        unit="events",
        gt=0,
        description="Minimum number of latest events for errors.tolerance. Until there were as many, the missing "
        "ones count as delivered.",
    )

    @pydantic.field_validator("tolerance", mode="before")
    @classmethod
    def _word(cls, value: object) -> object:
        if value in ("none", "all"):
            return 0 if value == "none" else 100
        if isinstance(value, str) and not value.isdecimal():
            raise ValueError(f"must be none, all, or a whole number of percent such as 50, not {value!r}")
        return value
