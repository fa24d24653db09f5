"""Base class of all components: options, a name, metrics, and the life cycle of open, work and close."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import sys
import threading
import time
import typing
from abc import ABC
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

from typing_extensions import TypeVar

from flafka.plugins.compatibility import CompatibilityNote
from flafka.plugins.errors import MissingExtra
from flafka.plugins.metrics import Metric, Metrics
from flafka.plugins.options import Config

C = TypeVar("C", bound=Config, default=Any)


class ConnectivityWarning(str):
    """A sentence from `Component.check_connectivity` about a working but unsafe setup."""


class PortOccupied(str):
    """A sentence from `Component.check_connectivity` about a port on which another process listens.

    No error if that process is the running agent of the same configuration.
    """

    port: int
    udp: bool

    def __new__(cls, sentence: str, port: int, *, udp: bool = False) -> PortOccupied:
        """Return the sentence, with the port and its protocol."""
        self = super().__new__(cls, sentence)
        self.port, self.udp = port, udp
        return self


class Component(ABC, Generic[C]):
    """Base class of sources, channels, interceptors and sinks.

    Life cycle: `__init__` (no I/O) → `open` (connects; may raise Retry) → work → `close`. The runner always calls
    `close`, also after a failed `open`, and may call it twice. After a failure the runner closes the component and
    opens it again.

    The runner sets `name`, `member` and `stopping`. A blocking call must return soon after `stopping` is set. On
    executors of Spark it is never set: Spark ends their tasks.
    """

    type_name: ClassVar[str] = ""
    """Name in the configuration: `a1.sources.s1.type = <type_name>`."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names of the type, such as Flume's class name. Case is ignored."""
    declared_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics of this component. The agent declares the metrics that all components of a kind have."""
    libraries: ClassVar[Mapping[str, str]] = {}
    """Modules that the component imports after its construction, each with its extra, or an empty text.

    `agent check` reports a missing one as an error. The agent imports them before any source opens, because an import
    fails once the process has no file descriptor left. `libraries_for` selects those that a configuration needs.
    """
    config_class: ClassVar[type[Config]] = Config
    """Class of its options. Set automatically to the type argument of the base class."""
    compatibility_notes: ClassVar[Sequence[CompatibilityNote]] = ()
    """Differences from Flume's component of the same type."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if isinstance(argument, type) and issubclass(argument, Config):
                    cls.config_class = argument

    @classmethod
    def libraries_for(cls, config: Any) -> Mapping[str, str]:
        """Return the part of `libraries` that a component with these options imports; all of them by default."""
        return cls.libraries

    def __init__(self, config: C, name: str = "") -> None:
        self.config = config
        self.name = name or self.type_name
        self.member = self.name
        """Client name that servers see, unique on this host: agent and component. Set by the runner."""
        self.metrics = Metrics()
        self.stopping = threading.Event()
        self.log = logging.getLogger(f"{type(self).__module__}.{self.name}")
        self._warned: dict[str, float] = {}

    def open(self) -> None:
        """Acquire connections, files and sockets. Raises Retry for a transient failure."""

    def close(self) -> None:
        """Release everything, without a commit: unflushed events are dropped, and redelivered later. Idempotent."""

    def check_connectivity(self) -> Iterator[str]:
        """Yield a sentence for each reason why `open` would fail, for `agent check --connect`.

        A `ConnectivityWarning` becomes a warning, and any other text an error. A `PortOccupied` is no error beside
        the running agent of the same configuration. Must have no side effects.
        """
        return iter(())

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Return files and directories that no other component may use, each with the option that names it.

        `agent check` reports a second component with the same file or directory.
        """
        return {}

    def warn_rate_limited(self, about: str, message: str, *args: object) -> None:
        """Log a warning, at most once a minute for each `about`. Any thread may call.

        For failures that remote peers can cause, which would flood the log otherwise.
        """
        now = time.monotonic()
        if now - self._warned.get(about, -60.0) >= 60:
            self._warned[about] = now
            self.log.warning(message, *args)


_importing = threading.RLock()


def require(module: str, extra: str = "") -> Any:
    """Return a module, which is imported if necessary. Any thread may call.

    Raises MissingExtra, which names the extra, if the module cannot be imported and `extra` is given. Without
    `extra`, and if the process lacks descriptors or memory, the ImportError itself is raised. A failed import leaves
    no module behind: the next attempt would take a partly imported package for a complete one.
    """
    # Sinks open on their own threads, and concurrent imports of libraries that import one another deadlock.
    with _importing:
        before = set(sys.modules)
        try:
            return importlib.import_module(module)
        except BaseException as e:
            _forget_modules_since(before)
            if isinstance(e, ImportError) and extra and not _out_of_resources(e):
                raise MissingExtra(f"{module} is not installed: pip install 'flafka[{extra}]'") from e
            raise


def _forget_modules_since(before: Collection[str]) -> None:
    """Drop imported modules whose top-level package was not imported before."""
    for name in sys.modules.keys() - before:
        if name.partition(".")[0] not in before:
            sys.modules.pop(name, None)


def _out_of_resources(error: ImportError) -> bool:
    """Return True where an extension module could not be loaded for lack of file descriptors or memory."""
    text = str(error)
    return any(os.strerror(number) in text for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM))
