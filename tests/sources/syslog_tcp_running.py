"""Source `syslogtcp` on a port of its own, and connections to it."""

import socket

from flafka.sources.syslog import SyslogTcp


def make(**options):
    properties = {"host": "127.0.0.1", "port": "0"} | {name: str(value) for name, value in options.items()}
    config, problems = SyslogTcp.config_class.parse(properties)
    assert not problems, problems
    return SyslogTcp(config, "s1")


def connect(source):
    return socket.create_connection(("127.0.0.1", source.port), timeout=60)
