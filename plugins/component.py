"""What all components share: options, a name, counters, and a life of open, work and close."""

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
    """A sentence from `Component.check_connectivity` about what works, though less safely than it should."""


class PortOccupied(str):
    """A sentence from `Component.check_connectivity` about a port on which something listens already.

    It is no error where that is the agent of the same configuration, which runs.
    """

    port: int
    udp: bool

    def __new__(cls, sentence: str, port: int, *, udp: bool = False) -> PortOccupied:
        """The sentence, and which port it is about."""
        self = super().__new__(cls, sentence)
        self.port, self.udp = port, udp
        return self


class Component(ABC, Generic[C]):
    """What all components share.

    Life: `__init__` (no I/O) → `open` (connects; may raise Retry) → work → `close`, which always runs, also after a
    failed `open`, and may run twice. After a failure the runner closes the component and opens it again.

    The runner sets `name`, `member` and `stopping`; whatever blocks must wake soon after `stopping` is set. On
    executors of Spark it is never set: Spark ends their tasks.
    """

    type_name: ClassVar[str] = ""
    """The name in the configuration: `a1.sources.s1.type = <type_name>`."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names for it, Flume's class names among them. Aliases ignore case."""
    declared_metrics: ClassVar[tuple[Metric, ...]] = ()
    """Metrics of the component itself. Those that all components of its kind have are the agent's business."""
    libraries: ClassVar[Mapping[str, str]] = {}
    """Modules that the component imports after it was made, with the extra that brings each, or an empty text.

    `agent check` reports a missing one as an error. The agent imports them before any source opens: an import fails
    when the process has no file descriptor left. `libraries_for` says which of them a configuration needs.
    """
    config_class: ClassVar[type[Config]] = Config
    """Its options: the type argument of the base class, found by itself."""
    compatibility_notes: ClassVar[Sequence[CompatibilityNote]] = ()
    """What it does otherwise than Flume's component of the same type."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in typing.get_args(base):
                if isinstance(argument, type) and issubclass(argument, Config):
                    cls.config_class = argument

    @classmethod
    def libraries_for(cls, config: Any) -> Mapping[str, str]:
        """Return what of `libraries` a component with these options imports; all of them by default."""
        return cls.libraries

    def __init__(self, config: C, name: str = "") -> None:
        self.config = config
        self.name = name or self.type_name
        self.member = self.name
        """How a server that remembers its clients knows it again, on this host: set by the runner, agent included."""
        self.metrics = Metrics()
        self.stopping = threading.Event()
        self.log = logging.getLogger(f"{type(self).__module__}.{self.name}")
        self._warned: dict[str, float] = {}

    def open(self) -> None:
        """Acquire what is needed: connections, files, sockets. Raise Retry where trying again may help."""

    def close(self) -> None:
        """Release everything. Not a commit: what was not flushed is lost here and offered again."""

    def check_connectivity(self) -> Iterator[str]:
        """For `agent check --connect`: yield a sentence for everything that would keep `open` from working.

        A `ConnectivityWarning` becomes a warning, and any other text an error. A `PortOccupied` is no error beside
        the running agent of the same configuration. Changes nothing and leaves nothing behind.
        """
        return iter(())

    def exclusive_resources(self) -> Mapping[Path, str]:
        """Files and directories that no other component may use, and the option that names each.

        `check` names the second component that has the same.
        """
        return {}

    def warn_rate_limited(self, about: str, message: str, *args: object) -> None:
        """Log a warning, one a minute about the same: for what anyone who can connect can cause. Any thread."""
        now = time.monotonic()
        if now - self._warned.get(about, -60.0) >= 60:
            self._warned[about] = now
            self.log.warning(message, *args)


_importing = threading.RLock()


def require(module: str, extra: str = "") -> Any:
    """Import a module. Raises MissingExtra, with the extra that brings it, where it is not installed.

    An import that fails leaves nothing behind: a part of a package that stays would be taken for the whole one by the
    next attempt.
    """
    # One at a time: sinks open on threads of their own, and libraries that import one another deadlock then.
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
    """Drop modules of packages of which nothing was imported before."""
    for name in sys.modules.keys() - before:
        if name.partition(".")[0] not in before:
            sys.modules.pop(name, None)


def _out_of_resources(error: ImportError) -> bool:
    """Return True where an extension module could not be loaded for lack of file descriptors or memory."""
    text = str(error)
    return any(os.strerror(number) in text for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM))
