"""A socket that listens, and why it cannot."""

from __future__ import annotations

import errno
import os
import socket

from plugins import Retry


def listen(host: str, port: int, kind: socket.SocketKind) -> socket.socket:
    """A non-blocking socket bound to that address, listening where it is TCP. Retry says why that is not possible."""
    listener = None
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        listener.setblocking(False)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen(socket.SOMAXCONN)
    except OSError as e:
        if listener is not None:
            listener.close()
        protocol = "TCP" if kind == socket.SOCK_STREAM else "UDP"
        raise Retry(f"cannot listen on {host}:{port} ({protocol}): {_reason(e)}") from e
    return listener


def _reason(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program listens there; stop it or choose another port"
    if error.errno == errno.EACCES:
        return "ports below 1024 need root or the capability CAP_NET_BIND_SERVICE; choose a higher one"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address"
    return error.strerror or os.strerror(error.errno or 0)
