"""Access rules by address and host name of a client, in the syntax of Flume's `ipFilterRules`."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import ipaddress
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple


class Rule(NamedTuple):
    """One rule of `ipFilterRules`."""

    allow: bool
    by_name: bool
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Parse one rule, such as `allow:ip:10.*`. Raises ValueError for a wrong syntax."""
        match = re.fullmatch(r"(allow|deny):(ip|name):(\S+)", text)
        if match is None:
            raise ValueError(f"{text!r} must be (allow|deny):(ip|name):pattern, such as allow:ip:10.*")
        return cls(match[1] == "allow", match[2] == "name", match[3].lower())

    def matches(self, address: str, name: str) -> bool:
        """Return True if the pattern, with `*` and `?`, matches the address or, for a rule by name, the host name.

        The name `localhost` also matches every loopback address. Case does not matter.
        """
        ip = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if not self.by_name:
            return fnmatch.fnmatchcase(str(ip), self.pattern)
        return fnmatch.fnmatchcase(name.lower(), self.pattern) or (self.pattern == "localhost" and ip.is_loopback)


class IpFilter:
    """Ordered access rules: the first rule that matches a client decides. Clients that match no rule may connect."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = rules
        self._by_name = any(rule.by_name for rule in rules)

    def admits(self, address: str, name: str) -> bool:
        """Return True if the first rule that matches this address and host name allows it, or if no rule matches."""
        return next((rule.allow for rule in self._rules if rule.matches(address, name)), True)

    def denies(self, address: tuple[str, int]) -> bool:
        """Return True if the rules deny this address; always False if a rule needs host names (`denies_name`)."""
        return not self._by_name and not self.admits(address[0], "")

    async def denies_name(self, address: tuple[str, int]) -> bool:
        """Return True if the rules deny the client, after a reverse lookup of its host name.

        Always False if no rule needs host names (`denies`). A client without a name has the empty one.
        """
        if not self._by_name:
            return False
        name = ""
        with contextlib.suppress(OSError):
            name, _ = await asyncio.get_running_loop().getnameinfo(address, socket.NI_NAMEREQD)
        return not self.admits(address[0], name)
