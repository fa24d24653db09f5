"""Built-in sources: one module or folder each, named by its type."""

from flafka.plugins import Component, hookimpl

MODULES = {"multiport_syslogtcp": "syslog", "syslogtcp": "syslog", "syslogudp": "syslog"}
"""Modules of types that are not named by their type."""


@hookimpl
def components() -> list[type[Component]]:
    """Return the built-in sources."""
    from flafka.sources.avro import AvroSource
    from flafka.sources.exec import ExecSource
    from flafka.sources.http import HttpSource
    from flafka.sources.kafka import KafkaSource
    from flafka.sources.log4j import Log4jSource
    from flafka.sources.netcat import NetcatSource
    from flafka.sources.netcatudp import NetcatUdpSource
    from flafka.sources.seq import SeqSource
    from flafka.sources.spooldir import SpooldirSource
    from flafka.sources.stress import StressSource
    from flafka.sources.syslog import MultiportSyslogTcp, SyslogTcp, SyslogUdp
    from flafka.sources.taildir import TaildirSource
    from flafka.sources.thrift import ThriftSource

    return [
        AvroSource,
        ExecSource,
        HttpSource,
        KafkaSource,
        Log4jSource,
        MultiportSyslogTcp,
        NetcatSource,
        NetcatUdpSource,
        SeqSource,
        SpooldirSource,
        StressSource,
        SyslogTcp,
        SyslogUdp,
        TaildirSource,
        ThriftSource,
    ]
