"""Where events come from: one source a module or folder, named by its type."""

from plugins import Component, hookimpl


@hookimpl
def components() -> list[type[Component]]:
    """The built-in sources."""
    from sources.avro import AvroSource
    from sources.exec import ExecSource
    from sources.http import HttpSource
    from sources.kafka import KafkaSource
    from sources.log4j import Log4jSource
    from sources.netcat import NetcatSource
    from sources.netcatudp import NetcatUdpSource
    from sources.seq import SeqSource
    from sources.spooldir import SpooldirSource
    from sources.stress import StressSource
    from sources.syslog import MultiportSyslogTcp, SyslogTcp, SyslogUdp
    from sources.taildir import TaildirSource
    from sources.thrift import ThriftSource

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
