"""Options of the avro source, and whom it lets in."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from types import MappingProxyType
from typing import NamedTuple

from plugins import agreement, option
from plugins.shared.avrorpc import CompressionConfig
from sources.serving import ServingConfig


class AvroConfig(CompressionConfig, ServingConfig):
    """Options of the avro source."""

    ignored = MappingProxyType({"threads": "one thread serves all connections"})
    ip_filter: bool = option(False, name="ipFilter", description="Check each client against `ipFilterRules`.")
    ip_filter_rules: str = option(
        "",
        name="ipFilterRules",
        description="Rules such as `allow:ip:10.1.*,allow:name:localhost,deny:ip:*`, separated by commas. The "
        "first rule that matches a client decides; clients that match no rule are admitted.",
    )
    max_request_bytes: int = option(
        32 * 1024 * 1024,
        name="maxRequestBytes",
        description="Maximum size of a request. After a larger one the connection is closed.",
        unit="bytes",
        ge=1024,
    )
    request_timeout: int = option(
        15_000,
        name="request-timeout",
        description="A request whose events are not stored within this time is answered with FAILED. Set it below "
        "the timeout of the clients, which is 20,000 ms by default.",
        unit="ms",
        ge=100,
    )
    frame_timeout: float = option(
        30.0,
        name="frameTimeout",
        description="A connection that leaves a request or a TLS handshake unfinished for this long is closed.",
        unit="s",
        gt=0,
    )
    idle_timeout: float = option(
        0.0,
        name="idleTimeout",
        description="A connection that is silent for this long is closed; 0 never closes one. Appenders may log "
        "nothing for days, and report a closed connection as a failure.",
        unit="s",
        ge=0,
    )

    @agreement("ip_filter_rules", "ip_filter")
    def _readable_rules(self) -> None:
        if self.ip_filter and not self.rules():
            raise ValueError("is required with ipFilter = true")

    def rules(self) -> list[Rule]:
        """Those in force, in their order."""
        texts = [text.strip() for text in self.ip_filter_rules.split(",") if text.strip()]
        return [Rule.parse(text) for text in texts] if self.ip_filter else []


class Rule(NamedTuple):
    """One of ipFilterRules."""

    allow: bool
    by_name: bool
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        """ValueError for what is none."""
        found = re.fullmatch(r"(allow|deny):(ip|name):(\S+)", text)
        if found is None:
            raise ValueError(f"{text!r} must be (allow|deny):(ip|name):pattern, such as allow:ip:10.*")
        return cls(found[1] == "allow", found[2] == "name", found[3].lower())

    def fits(self, address: str, name: str) -> bool:
        """Whether it is about the client with that address and name."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if not self.by_name:
            return fnmatch.fnmatchcase(str(ip), self.pattern)
        return fnmatch.fnmatchcase(name.lower(), self.pattern) or (self.pattern == "localhost" and ip.is_loopback)


def admitted(rules: list[Rule], address: str, name: str) -> bool:
    """Whether that client may connect."""
    return next((rule.allow for rule in rules if rule.fits(address, name)), True)
