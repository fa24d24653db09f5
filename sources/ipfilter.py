"""Access rules of a source by the address and the host name of a client, as Flume's `ipFilterRules` write them."""

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
    """One of ipFilterRules."""

    allow: bool
    by_name: bool
    pattern: str

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Parse one rule. Raises ValueError where the text is none."""
        found = re.fullmatch(r"(allow|deny):(ip|name):(\S+)", text)
        if found is None:
            raise ValueError(f"{text!r} must be (allow|deny):(ip|name):pattern, such as allow:ip:10.*")
        return cls(found[1] == "allow", found[2] == "name", found[3].lower())

    def fits(self, address: str, name: str) -> bool:
        """Return True if the rule applies to a client with this address and host name."""
        ip = ipaddress.ip_address(address.partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if not self.by_name:
            return fnmatch.fnmatchcase(str(ip), self.pattern)
        return fnmatch.fnmatchcase(name.lower(), self.pattern) or (self.pattern == "localhost" and ip.is_loopback)


class IpFilter:
    """Rules in their order: the first that applies decides. A client to which none applies may connect."""

    def __init__(self, rules: Sequence[Rule] = ()) -> None:
        self._rules = rules
        self._by_name = any(rule.by_name for rule in rules)

    def admits(self, address: str, name: str) -> bool:
        """Return True if a client with this address and host name may connect."""
        return next((rule.allow for rule in self._rules if rule.fits(address, name)), True)

    def denies(self, address: tuple[str, int]) -> bool:
        """Return True if no rule needs host names, and a client with this address may not connect."""
        return not self._by_name and not self.admits(address[0], "")

    async def denies_name(self, address: tuple[str, int]) -> bool:
        """Return True if rules need host names, and the client may not connect. Looks its name up."""
        if not self._by_name:
            return False
        name = ""
        with contextlib.suppress(OSError):
            name, _ = await asyncio.get_running_loop().getnameinfo(address, socket.NI_NAMEREQD)
        return not self.admits(address[0], name)
