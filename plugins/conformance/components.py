"""Conformance checks of every component: names, documentation, options, life cycle."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from flafka.plugins.component import Component
from flafka.plugins.contractcheck import find_contract_violations
from flafka.plugins.errors import FlafkaError
from flafka.plugins.manager import kind_of
from flafka.plugins.options import Config

Properties = Mapping[str, str]
T = TypeVar("T", bound=Component[Any])


def check_component(cls: type[T], properties: Properties, *, failing: Properties | None = None) -> None:
    """Check names, documentation, options and life cycle of a component.

    `failing` are properties with which `open` fails. The checks of each kind call this one.
    """
    for violation, _ in find_contract_violations(cls):
        raise AssertionError(f"{cls.__name__} {violation}")
    make(cls, properties)  # validates the properties, and imports modules, which would count as I/O below
    _check_documented(cls)
    _check_options(cls, properties)
    _check_construction(cls, properties)
    _check_life_cycle(cls, properties, failing)


def make(cls: type[T], properties: Properties) -> T:
    """Return a new component with these properties, made as the agent makes it."""
    return cls(_config(cls, properties))


def _config(cls: type[T], properties: Properties) -> Config:
    """Return the options of a component. Raises AssertionError if the given properties have problems."""
    config, problems = cls.config_class.for_type(cls.type_name).parse(properties)
    assert not problems, f"{cls.__name__}: the properties given to the check are wrong: {problems}"
    assert config is not None
    return config


def _check_documented(cls: type[T]) -> None:
    """Check that type name and docstring say what users must know."""
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
    """Check that options are described, unknown ones reported, and secrets hidden."""
    for option in cls.config_class.options():
        assert option.description.strip(), f"{cls.__name__}: option {option.name} has no description"
    config, problems = cls.config_class.for_type(cls.type_name).parse({**properties, "noSuchOption": "x"})
    assert [problem.option for problem in problems if problem.is_unknown_option] == ["noSuchOption"], (
        f"{cls.__name__} does not report an unknown option: {problems}"
    )
    for option in cls.config_class.options():
        if option.is_secret and option.name in properties:
            assert properties[option.name] not in repr(config), f"{cls.__name__}: {option.name} is shown by repr"


def _check_construction(cls: type[T], properties: Properties) -> None:
    """Check that the constructor does no I/O, and starts no threads."""
    config = _config(cls, properties)  # a validator may read the files that a configuration names
    for remaining in reversed(range(10)):  # another thread of the process may open a file or start a thread meanwhile
        threads, files = _threads(), _open_files()
        with _IoAudit() as audit:
            component = cls(config)
        opened, started = _open_files() - files, _threads() - threads
        assert not audit.events, f"{cls.__name__}.__init__ does I/O: {', '.join(audit.events)}; move it to open()"
        assert remaining or not started, f"{cls.__name__}.__init__ starts threads; move it to open()"
        assert remaining or not opened, f"{cls.__name__}.__init__ opens {', '.join(opened)}; move it to open()"
        component.close()
        if not opened and not started:
            return


def _check_life_cycle(cls: type[T], properties: Properties, failing: Properties | None) -> None:
    """Check `open`, `close` and `check_connectivity` in every order.

    With the properties `failing`, if given, `open` must fail.
    """
    component = make(cls, properties)
    component.close()  # a component that was never opened
    component.close()
    errors = list(component.check_connectivity())
    assert not errors, f"{cls.__name__}.check_connectivity() reports errors where open() works: {errors}"
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
    assert str(failure), f"{cls.__name__}.open() raises an error without a text"
    assert list(component.check_connectivity()), (
        f"{cls.__name__}.check_connectivity() finds nothing where open() fails"
    )


class _IoAudit:
    """Recorder of the I/O of this thread while the context is entered."""

    _IO_EVENTS = re.compile(
        r"socket\.(?!__new__)|subprocess|os\.(mkdir|remove|rename|rmdir|listdir|scandir|system|fork)|open"
    )
    _current: _IoAudit | None = None
    _is_installed = False

    def __init__(self) -> None:
        self.events: list[str] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> _IoAudit:
        if not _IoAudit._is_installed:  # an audit hook cannot be removed
            sys.addaudithook(_IoAudit._record)
            _IoAudit._is_installed = True
        _IoAudit._current = self
        return self

    def __exit__(self, *_: object) -> None:
        _IoAudit._current = None

    @staticmethod
    def _record(event: str, arguments: tuple[Any, ...]) -> None:
        audit = _IoAudit._current
        if audit is not None and audit._thread == threading.get_ident() and audit._IO_EVENTS.match(event):
            audit.events.append(f"{event} {arguments[:1]}")


def _threads() -> set[str]:
    """Return the ids of the threads of this process, including threads of libraries."""
    tasks = Path("/proc/self/task")
    if tasks.exists():
        return {task.name for task in tasks.iterdir()}
    return {str(thread.ident) for thread in threading.enumerate()}


def _open_files() -> set[str]:
    """Return the open files, sockets and pipes of this process."""
    open_files = set()
    descriptors = Path("/proc/self/fd")
    for entry in descriptors.iterdir() if descriptors.exists() else ():
        try:
            open_files.add(f"{entry.name}: {entry.readlink()}")
        except OSError:  # the descriptor of the listing itself
            continue
    return {name for name in open_files if "anon_inode" not in name and "/proc/" not in name}
