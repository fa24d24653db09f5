"""Kerberos tickets and SPNEGO by the system's MIT library, libgssapi_krb5, through ctypes.

The Python packages `gssapi` and `krb5` have no wheels for Linux, and would need a compiler on each host.
"""

from __future__ import annotations

import base64
import ctypes
import itertools
import os
import threading
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from functools import cache
from typing import Any

LIBRARY = "libgssapi_krb5.so.2"
_ERROR_BITS = 0xFFFF0000
"""Bits of a major status that report an error."""
_CONTINUE = 1
"""Major status of a context that needs another token of the service."""
_MUTUAL, _SEQUENCE = 2, 8
"""Requests of a context, as libsasl2 makes them for SASL's mechanism GSSAPI."""
_GSS_CODE, _MECHANISM_CODE, _INITIATE = 1, 2, 1
_CACHE_NUMBERS = itertools.count(1)
_MAX_NAME_BYTES = 4096
"""Maximum length of a keytab's name, with its type."""


class KerberosError(Exception):
    """Failure of the Kerberos library or of the KDC, with the library's text."""


class _Oid(ctypes.Structure):
    _fields_ = (("length", c_uint32), ("elements", c_void_p))


class _OidSet(ctypes.Structure):
    _fields_ = (("count", c_size_t), ("elements", POINTER(_Oid)))


class _Buffer(ctypes.Structure):
    _fields_ = (("length", c_size_t), ("value", c_void_p))


class _KeyValue(ctypes.Structure):
    _fields_ = (("key", c_char_p), ("value", c_char_p))


class _Store(ctypes.Structure):
    _fields_ = (("count", c_uint32), ("elements", POINTER(_KeyValue)))


def _oid(data: bytes) -> _Oid:
    return _Oid(len(data), ctypes.cast(ctypes.create_string_buffer(data, len(data)), c_void_p))


# RFC 4178, RFC 1964, and its section 2.1.
_SPNEGO = _oid(b"\x2b\x06\x01\x05\x05\x02")
_KRB5 = _oid(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02")
_HOST_BASED_SERVICE = _oid(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x01\x04")
_PRINCIPAL = _oid(b"\x2a\x86\x48\x86\xf7\x12\x01\x02\x02\x01")


@cache
def _library() -> Any:
    """Return the loaded library. Raises KerberosError if it is not installed."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as e:
        message = f"Kerberos needs {LIBRARY}: install the package libgssapi-krb5-2 (Debian) or krb5-libs (Red Hat)"
        raise KerberosError(message) from e
    minor, name, buffer = POINTER(c_uint32), POINTER(c_void_p), POINTER(_Buffer)
    library.gss_import_name.argtypes = [minor, buffer, POINTER(_Oid), name]
    library.gss_acquire_cred_from.argtypes = [
        *(minor, c_void_p, c_uint32, POINTER(_OidSet), c_int),
        *(POINTER(_Store), name, c_void_p, c_void_p),
    ]
    library.gss_inquire_cred.argtypes = [minor, c_void_p, name, c_void_p, c_void_p, c_void_p]
    library.gss_display_name.argtypes = [minor, c_void_p, buffer, c_void_p]
    library.gss_init_sec_context.argtypes = [
        *(minor, c_void_p, name, c_void_p, POINTER(_Oid), c_uint32, c_uint32),
        *(c_void_p, c_void_p, c_void_p, buffer, c_void_p, c_void_p),
    ]
    library.gss_wrap.argtypes = [minor, c_void_p, c_int, c_uint32, buffer, c_void_p, buffer]
    library.gss_unwrap.argtypes = [minor, c_void_p, buffer, buffer, c_void_p, c_void_p]
    library.gss_display_status.argtypes = [minor, c_uint32, c_int, c_void_p, minor, buffer]
    library.gss_release_buffer.argtypes = [minor, buffer]
    library.gss_release_cred.argtypes = [minor, name]
    library.gss_release_name.argtypes = [minor, name]
    library.gss_delete_sec_context.argtypes = [minor, name, c_void_p]
    return library


class Credential:
    """Kerberos credential of one principal, from a keytab or from the user's ticket cache.

    Each instance asks the KDC, and has a ticket cache of its own in memory: an expired ticket of an earlier one would
    hide the cause of a failure, and several principals in one process stay separate. A KDC that does not answer
    blocks the constructor for about half a minute.
    """

    def __init__(self, principal: str | None = None, keytab: str | None = None) -> None:
        """Obtain a ticket for `principal` with the key in `keytab`.

        Without a keytab, use the ticket cache: KRB5CCNAME, by default the user's. Without a principal, use the one of
        the ticket cache. Raises KerberosError.
        """
        self._handle, self._cache_name = c_void_p(), ""
        library, minor, wanted = _library(), c_uint32(), c_void_p()
        if principal is not None:
            wanted = _import_name(principal, _PRINCIPAL)
        try:
            if keytab is not None:
                # A keytab of the caller's must not be replaced by KRB5_CLIENT_KTNAME, nor its tickets by KRB5CCNAME.
                cache_name = self._cache_name = f"MEMORY:flafka-{os.getpid()}-{next(_CACHE_NUMBERS)}"
                self._acquire(wanted, _credential_store(os.fsencode(keytab), cache_name.encode()))
            else:
                with _defaults_lock:  # the library reads the defaults, which `log_in_process` changes
                    self._acquire(wanted, _user_defaults)
            self.principal = principal or self._name()
            """Principal, such as `flume@EXAMPLE.COM`."""
        except BaseException:
            self.close()
            raise
        finally:
            if wanted:
                library.gss_release_name(byref(minor), byref(wanted))

    def _acquire(self, wanted: c_void_p, pairs: Any) -> None:
        """Obtain the ticket, by the names in a credential store, or by the defaults if it is None."""
        store = None if pairs is None else byref(_Store(len(pairs), pairs))
        minor = c_uint32()
        # For krb5 alone first: with SPNEGO, the library reports "cannot find mechanisms" whatever the cause is.
        for mechanisms in ((_Oid * 1)(_KRB5), (_Oid * 2)(_SPNEGO, _KRB5)):
            self._release()
            mechanism_set = _OidSet(len(mechanisms), mechanisms)
            major = _library().gss_acquire_cred_from(
                *(byref(minor), wanted, 0, byref(mechanism_set), _INITIATE),
                *(store, byref(self._handle), None, None),
            )
            _check(major, minor)

    def _name(self) -> str:
        """Return the principal of the ticket cache. Raises KerberosError."""
        library, minor, name, text = _library(), c_uint32(), c_void_p(), _Buffer()
        _check(library.gss_inquire_cred(byref(minor), self._handle, byref(name), None, None, None), minor)
        try:
            _check(library.gss_display_name(byref(minor), name, byref(text), None), minor)
            return _take(text).decode(errors="replace")
        finally:
            library.gss_release_name(byref(minor), byref(name))

    def negotiate(self, host: str) -> str:
        """Return the value of an `Authorization` header for the HTTP service of a host (RFC 4559).

        The service's principal is `HTTP/<host>`. The value is valid for one request. Raises KerberosError.
        """
        library, minor, context, token = _library(), c_uint32(), c_void_p(), _Buffer()
        service = _import_name(f"HTTP@{host}", _HOST_BASED_SERVICE)
        try:
            major = library.gss_init_sec_context(
                *(byref(minor), self._handle, byref(context), service, byref(_SPNEGO), 0, 0),
                *(None, None, None, byref(token), None, None),
            )
            _check(major, minor)
            return f"Negotiate {base64.b64encode(_take(token)).decode()}"
        finally:
            library.gss_release_buffer(byref(minor), byref(token))
            library.gss_delete_sec_context(byref(minor), byref(context), None)
            library.gss_release_name(byref(minor), byref(service))

    def close(self) -> None:
        """Release the credential, and delete its tickets in memory. Idempotent."""
        self._release()
        name, self._cache_name = self._cache_name, ""
        if name:  # releasing a credential keeps the cache that the caller has named
            _destroy_cache(name)

    def _release(self) -> None:
        if self._handle:
            _library().gss_release_cred(byref(c_uint32()), byref(self._handle))


_defaults_lock = threading.Lock()
"""Lock that is held while the defaults of the process are changed, or used."""
_user_defaults: Any = None
"""Client keytab and ticket cache of the user, once `log_in_process` has replaced them for this process."""


def log_in_process(principal: str, keytab: str) -> None:
    """Make a keytab the default credential of this process, for libraries that take no other, such as libsasl.

    libkrb5 gets tickets at need, and again halfway through their life, into a cache in memory. `Credential` without
    a keytab still uses the user's own ticket cache, and `os.environ` stays as it is: start child processes with it as
    their environment. Asks no KDC. A later call replaces the login. Raises KerberosError.

    It changes the environment of C, which other threads of libraries may read meanwhile: call it before they start.
    """
    global _user_defaults
    library, context = _krb5_library(), c_void_p()
    cache_name = f"MEMORY:flafka-{os.getpid()}-process".encode()
    if library.krb5_init_context(byref(context)):
        raise KerberosError("krb5.conf cannot be used: test it with kinit")
    with _defaults_lock:
        try:
            user_defaults = _user_defaults if _user_defaults is not None else _defaults(library, context)
            _make_cache(library, context, cache_name, principal)
        finally:
            library.krb5_free_context(context)
        _user_defaults = user_defaults
        # Not in `os.environ`: commands that this process starts are the user's, and have to use the user's tickets.
        set_variable = ctypes.PyDLL(None, use_errno=True).setenv  # no other thread of Python runs meanwhile
        for name, value in ((b"KRB5_CLIENT_KTNAME", os.fsencode(keytab)), (b"KRB5CCNAME", cache_name)):
            if set_variable(name, value, 1):
                raise KerberosError(f"{name.decode()} cannot be set: {os.strerror(ctypes.get_errno())}")


def _defaults(library: Any, context: c_void_p) -> Any:
    """Return a credential store with the defaults of the process. Raises KerberosError."""
    name, client_keytab = ctypes.create_string_buffer(_MAX_NAME_BYTES), c_void_p()
    if not library.krb5_kt_client_default(context, byref(client_keytab)):
        if library.krb5_kt_get_name(context, client_keytab, name, len(name)):
            name.value = b""
        library.krb5_kt_close(context, client_keytab)
    if not (ticket_cache := library.krb5_cc_default_name(context)):
        raise KerberosError("the user's ticket cache has no name: see KRB5CCNAME, and krb5.conf")
    return _credential_store(name.value, ticket_cache)


def _make_cache(library: Any, context: c_void_p, name: bytes, principal: str) -> None:
    """Make an empty ticket cache of a principal: tickets are got for it, or else for the first key of a keytab.

    Raises KerberosError.
    """
    owner, ticket_cache = c_void_p(), c_void_p()
    if library.krb5_parse_name(context, principal.encode(), byref(owner)):
        raise KerberosError(f"{principal!r} is no principal, or krb5.conf names no default_realm")
    try:
        if library.krb5_cc_resolve(context, name, byref(ticket_cache)):
            raise KerberosError(f"the ticket cache {name.decode()} cannot be made")
        is_failed = library.krb5_cc_initialize(context, ticket_cache, owner)
        library.krb5_cc_close(context, ticket_cache)
        if is_failed:
            raise KerberosError(f"the ticket cache {name.decode()} cannot be used for {principal}")
    finally:
        library.krb5_free_principal(context, owner)


def _credential_store(client_keytab: bytes, ticket_cache: bytes) -> Any:
    """Return the store of a credential that is got with a keytab, unless its name is empty, and kept in a cache."""
    pairs = [_KeyValue(b"client_keytab", client_keytab)] * bool(client_keytab)
    pairs.append(_KeyValue(b"ccache", ticket_cache))
    return (_KeyValue * len(pairs))(*pairs)


class SecurityContext:
    """Kerberos security context of a client with a service, for SASL's mechanism GSSAPI (RFC 4752)."""

    def __init__(self, credential: Credential, service: str) -> None:
        """`service` is written as `kafka@host`. Raises KerberosError."""
        self._credential, self._context, self._service = credential, c_void_p(), c_void_p()
        self._service = _import_name(service, _HOST_BASED_SERVICE)
        self.is_complete = False
        """True once both sides are authenticated."""

    def step(self, token: bytes = b"") -> bytes:
        """Return the token to send after the service's `token`, which is empty at first. Raises KerberosError."""
        minor, answer = c_uint32(), _Buffer()
        major = _library().gss_init_sec_context(
            *(byref(minor), self._credential._handle, byref(self._context), self._service, byref(_KRB5)),
            *(_MUTUAL | _SEQUENCE, 0, None, byref(_buffer(token)), None, byref(answer), None, None),
        )
        _check(major, minor)
        self.is_complete = not major & _CONTINUE
        return _take(answer)

    def wrap(self, data: bytes) -> bytes:
        """Return the data in a message with a checksum, not encrypted. Raises KerberosError."""
        minor, message = c_uint32(), _Buffer()
        _check(
            _library().gss_wrap(byref(minor), self._context, 0, 0, byref(_buffer(data)), None, byref(message)), minor
        )
        return _take(message)

    def unwrap(self, message: bytes) -> bytes:
        """Return the data in a message of the service. Raises KerberosError if its checksum is wrong."""
        minor, data = c_uint32(), _Buffer()
        _check(
            _library().gss_unwrap(byref(minor), self._context, byref(_buffer(message)), byref(data), None, None),
            minor,
        )
        return _take(data)

    def close(self) -> None:
        """Release the context, and its credential. Idempotent."""
        _library().gss_delete_sec_context(byref(c_uint32()), byref(self._context), None)
        if self._service:
            _library().gss_release_name(byref(c_uint32()), byref(self._service))
        self._credential.close()


def _destroy_cache(name: str) -> None:
    """Delete a ticket cache. Best-effort: a failure leaves it until the process ends."""
    library, context, ticket_cache = _krb5_library(), c_void_p(), c_void_p()
    if library.krb5_init_context(byref(context)):
        return
    if not library.krb5_cc_resolve(context, name.encode(), byref(ticket_cache)):
        library.krb5_cc_destroy(context, ticket_cache)
    library.krb5_free_context(context)


@cache
def _krb5_library() -> Any:
    """Return the loaded library of krb5, on which that of GSSAPI depends. Raises KerberosError without the latter."""
    _library()
    library = ctypes.CDLL("libkrb5.so.3")
    pointer = POINTER(c_void_p)
    library.krb5_init_context.argtypes = [pointer]
    library.krb5_cc_resolve.argtypes = [c_void_p, c_char_p, pointer]
    library.krb5_cc_destroy.argtypes = [c_void_p, c_void_p]
    library.krb5_free_context.argtypes = [c_void_p]
    library.krb5_cc_default_name.argtypes, library.krb5_cc_default_name.restype = [c_void_p], c_char_p
    library.krb5_cc_initialize.argtypes = [c_void_p, c_void_p, c_void_p]
    library.krb5_cc_close.argtypes = [c_void_p, c_void_p]
    library.krb5_kt_client_default.argtypes = [c_void_p, pointer]
    library.krb5_kt_get_name.argtypes = [c_void_p, c_void_p, c_char_p, c_uint32]
    library.krb5_kt_close.argtypes = [c_void_p, c_void_p]
    library.krb5_parse_name.argtypes = [c_void_p, c_char_p, pointer]
    library.krb5_free_principal.argtypes = [c_void_p, c_void_p]
    return library


def _import_name(text: str, kind: _Oid) -> c_void_p:
    """Return the library's handle of a name. Raises KerberosError."""
    minor, name = c_uint32(), c_void_p()
    _check(_library().gss_import_name(byref(minor), byref(_buffer(text.encode())), byref(kind), byref(name)), minor)
    return name


def _buffer(data: bytes) -> _Buffer:
    """Return a buffer of the library with these bytes, which it keeps alive."""
    buffer = _Buffer(len(data), ctypes.cast(c_char_p(data), c_void_p))
    buffer.data = data
    return buffer


def _take(buffer: _Buffer) -> bytes:
    """Return the content of a buffer of the library, and release it."""
    data = ctypes.string_at(buffer.value or 0, buffer.length) if buffer.length else b""
    _library().gss_release_buffer(byref(c_uint32()), byref(buffer))
    return data


def _check(major: int, minor: c_uint32) -> None:
    """Raise KerberosError if a call failed, with the text of krb5, or else that of GSSAPI."""
    if not major & _ERROR_BITS:
        return
    texts = []
    for code, kind, mechanism in ((minor.value, _MECHANISM_CODE, byref(_KRB5)), (major, _GSS_CODE, None)):
        text = _Buffer()
        _library().gss_display_status(byref(c_uint32()), code, kind, mechanism, byref(c_uint32()), byref(text))
        texts.append(_take(text).decode(errors="replace"))
    cause, general = texts
    raise KerberosError(cause if minor.value and cause != "Unknown error" else general)
