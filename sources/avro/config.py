"""Options of the avro source, and whom it lets in."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from typing import NamedTuple

from plugins import agreement, option
from plugins.shared.avrorpc import CompressionConfig
from sources.rpcconfig import RpcConfig


class AvroConfig(CompressionConfig, RpcConfig):
    """Options of the avro source."""

    ip_filter: bool = option(False, name="ipFilter", description="Check each client against `ipFilterRules`.")
    ip_filter_rules: str = option(
        "",
        name="ipFilterRules",
        description="Rules such as `allow:ip:10.1.*,allow:name:localhost,deny:ip:*`, separated by commas. The "
        "first rule that matches a client decides; clients that match no rule are admitted.",
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
