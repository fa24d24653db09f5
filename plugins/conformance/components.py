"""Conformance checks of every component: names, documentation, options, life."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from flafka.plugins.component import Component
from flafka.plugins.errors import FlafkaError
from flafka.plugins.manager import kind_of
from flafka.plugins.mistakes import mistakes
from flafka.plugins.options import Config

Properties = Mapping[str, str]
T = TypeVar("T", bound=Component[Any])


def check_component(cls: type[T], properties: Properties, *, failing: Properties | None = None) -> None:
    """Names, documentation, options and life of any component. `failing` are properties with which `open` fails.

    The checks of each kind call this.
    """
    for wrong, _ in mistakes(cls):
        raise AssertionError(f"{cls.__name__} {wrong}")
    make(cls, properties)  # are they right? And it may import what it needs: below, that would pass for I/O
    _check_documented(cls)
    _check_options(cls, properties)
    _check_construction(cls, properties)
    _check_life(cls, properties, failing)


def make(cls: type[T], properties: Properties) -> T:
    """A new component with these properties, as the agent makes it."""
    return cls(_config(cls, properties))


def _config(cls: type[T], properties: Properties) -> Config:
    config, problems = cls.config_class.for_type(cls.type_name).parse(properties)
    assert not problems, f"{cls.__name__}: the properties given to the check are wrong: {problems}"
    assert config is not None
    return config


def _check_documented(cls: type[T]) -> None:
    name = cls.__name__
    assert re.fullmatch(r"\S+", cls.type_name), f"{name}.type_name is {cls.type_name!r}: it is what users write"
    text = " ".join((vars(cls).get("__doc__") or "").split())
    assert text, f"{name} has no docstring: it is its documentation"
    if kind_of(cls) == "interceptor":
        assert re.search(r"(?i)\bpure\b", text), f"the docstring of {name} does not say whether it is pure"
    else:
        promise = r"(?i)\b(at least once|at most once|exactly once|lost|loses?|drop(s|ped)|gone)\b"
        assert re.search(promise, text), f"the docstring of {name} does not say what can be lost or repeated"


def _check_options(cls: type[T], properties: Properties) -> None:
    for option in cls.config_class.options():
        assert option.description.strip(), f"{cls.__name__}: option {option.name} has no description"
    config, problems = cls.config_class.for_type(cls.type_name).parse({**properties, "noSuchOption": "x"})
    assert [problem.option for problem in problems if problem.unknown] == ["noSuchOption"], (
        f"{cls.__name__} does not report an unknown option: {problems}"
    )
    for option in cls.config_class.options():
        if option.secret and option.name in properties:
            assert properties[option.name] not in repr(config), f"{cls.__name__}: {option.name} is shown by repr"


def _check_construction(cls: type[T], properties: Properties) -> None:
    config = _config(cls, properties)  # a check may read the files that a configuration names
    for left in reversed(range(10)):  # others in this process may open a file or start a thread at the same time
        threads, files = _threads(), _files()
        with _Watcher() as seen:
            component = cls(config)
        opened, started = _files() - files, _threads() > threads
        assert not seen.events, f"{cls.__name__}.__init__ does I/O: {', '.join(seen.events)}; move it to open()"
        assert left or not started, f"{cls.__name__}.__init__ starts threads; move it to open()"
        assert left or not opened, f"{cls.__name__}.__init__ opens {', '.join(opened)}; move it to open()"
        component.close()
        if not opened and not started:
            return


def _check_life(cls: type[T], properties: Properties, failing: Properties | None) -> None:
    component = make(cls, properties)
    component.close()  # a component that was never opened
    component.close()
    troubles = list(component.check_connectivity())
    assert not troubles, f"{cls.__name__}.check_connectivity() finds fault where open() works: {troubles}"
    for _ in range(2):  # the runner opens it again after a failure
        component.open()
        component.close()
        component.close()
    if failing is None:
        return
    component = make(cls, failing)
    failure = None
    try:
        component.open()
    except FlafkaError as e:
        failure = e
    component.close()
    component.close()
    assert failure is not None, f"{cls.__name__}.open() works with properties with which it should fail"
    assert str(failure), f"{cls.__name__}.open() fails without a word"
    assert list(component.check_connectivity()), (
        f"{cls.__name__}.check_connectivity() finds nothing where open() fails"
    )


class _Watcher:
    """Records what this thread asks of the operating system while it is entered."""

    _WATCHED = re.compile(
        r"socket\.(?!__new__)|subprocess|os\.(mkdir|remove|rename|rmdir|listdir|scandir|system|fork)|open"
    )
    _current: _Watcher | None = None
    _hooked = False

    def __init__(self) -> None:
        self.events: list[str] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> _Watcher:
        if not _Watcher._hooked:  # an audit hook cannot be taken away again
            sys.addaudithook(_Watcher._audit)
            _Watcher._hooked = True
        _Watcher._current = self
        return self

    def __exit__(self, *_: object) -> None:
        _Watcher._current = None

    @staticmethod
    def _audit(event: str, arguments: tuple[Any, ...]) -> None:
        watcher = _Watcher._current
        if watcher is not None and watcher._thread == threading.get_ident() and watcher._WATCHED.match(event):
            watcher.events.append(f"{event} {arguments[:1]}")


def _threads() -> int:
    """Number of threads of this process, with the threads of libraries."""
    tasks = Path("/proc/self/task")
    return len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()


def _files() -> set[str]:
    """Files, sockets and pipes that this process has open."""
    found = set()
    descriptors = Path("/proc/self/fd")
    for entry in descriptors.iterdir() if descriptors.exists() else ():
        try:
            found.add(f"{entry.name}: {entry.readlink()}")
        except OSError:  # the one that lists the directory
            continue
    return {name for name in found if "anon_inode" not in name and "/proc/" not in name}
