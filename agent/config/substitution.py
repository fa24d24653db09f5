"""`${…}` in values: environment, `-D` properties, dates, other properties, files, and config filters.

    ${env:HOME}  ${sys:user.name}  ${date:yyyy-MM-dd}  ${other.property}  ${file:/run/secrets/password}
    ${env:PORT:-44444}   with a default          ${${sys:stage}_BIND}   nested          $${kept}   as it is
    ${f1['KEY']}         config filter f1, asked for KEY

Unlike Flume, which resolves a reference to a property only where that happens to come earlier in hash order, every
property can be named. What a file or a config filter gives is taken as it is, and is a secret. As in Flume, what is a
shell's, such as `${file%.log}`, stays as it is.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from flafka.agent.config.diagnostics import DiagnosticCollector
from flafka.agent.config.properties import BLANKS, Property, path_of
from flafka.plugins.shared.datepattern import Field, tokens

Filter = Callable[[str], str | None]
"""A config filter: the value of a key, or None."""

ENVIRONMENT_FALLBACK = "org.apache.flume.node.EnvVarResolverProperties"
"""With `-DpropertiesImplementation=` this, a plain `${X}` may come from the environment."""

MAX_VALUE = 1 << 20
"""Longest text a value may grow to, and largest file it may come from."""
MAX_DEPTH = 50

_FILTERED = re.compile(r"""(?P<filter>[^\[\]]+)\[(?P<quote>['"]?)(?P<key>[-_a-zA-Z0-9]+)(?P=quote)\]""")
_KINDS = ("env", "sys", "java", "date", "file")
_SHELLS = re.compile(r"[#!]\w.*|\w+\[[@*]\].*|\w+(?:[%#/^,@]|:[=?+ \d]).*", re.DOTALL)
"""An expansion of a shell that is no reference of Flume's."""
_HAS_VARIABLES = ("command", "shell", "replaceString")
"""Options with variables, or groups, of their own: a plain name is one of these where no property has it."""
_DATE = {
    "yyyy": "%Y", "yy": "%y", "MMMM": "%B", "MMM": "%b", "MM": "%m", "dd": "%d", "HH": "%H", "hh": "%I",
    "mm": "%M", "ss": "%S", "EEEE": "%A", "EEE": "%a", "E": "%a", "a": "%p", "DDD": "%j", "Z": "%z", "z": "%Z",
}  # fmt: skip


class Unresolved(Exception):
    """Why an expression has no value; empty where that is told of an expression within it."""


class Resolver:
    """Gives values their final text. Errors are reported at the property that holds the expression."""

    def __init__(
        self,
        properties: Mapping[str, Property],
        report: DiagnosticCollector,
        *,
        directory: Path,
        system: Mapping[str, str],
        environment: Mapping[str, str],
        filters: Mapping[str, Filter],
    ) -> None:
        self._properties = properties
        self._report = report
        self._directory = directory
        self._system = {**_java_properties(), **system}
        self._environment = environment
        self._filters = filters
        self._now = datetime.now().astimezone()
        self.used: set[str] = set()
        """Names of all properties referred to."""
        self._resolved: dict[str, tuple[str, bool]] = {}
        self._unresolved: set[str] = set()
        self._open: list[str] = []
        self._problems: list[str] = []
        self._depth = 0

    def resolve(self, name: str) -> Property:
        """That property, resolved; an expression without a value stays as it is and is reported, once."""
        text, _ = self._property(name)
        return replace(self._properties[name], value=text.strip(BLANKS), resolved=name not in self._unresolved)

    def _property(self, name: str) -> tuple[str, bool]:
        if name not in self._resolved:
            prop = self._properties[name]
            self._open.append(name)
            outer, self._problems = self._problems, []
            text, secret = self._text(prop.value)
            for problem in self._problems:
                self._report.error(prop.place, path_of(name), problem)
            if self._problems:
                self._unresolved.add(name)
            self._problems = outer
            self._open.pop()
            if secret:
                self._report.secret(text.strip(BLANKS), prop.value)
            self._resolved[name] = text, secret
        return self._resolved[name]

    def _text(self, text: str) -> tuple[str, bool]:
        """The text with its expressions resolved, and whether a secret is in it."""
        done, length, secret, at = [], len(text), False, 0
        while (start := text.find("${", at)) >= 0:
            end = _end(text, start)
            if end < 0:
                break
            if start > at and text[start - 1] == "$":
                done.append(text[at : start - 1] + "${")
                at = start + 2
                continue
            expression = text[start:end]
            try:
                value, hidden = self._value(expression[2:-1])
                length += len(value)
                if length > MAX_VALUE:
                    raise Unresolved("the text would grow beyond 1 MiB")
            except Unresolved as e:
                if e.args and not self._is_meant_for_others(expression[2:-1]):
                    shown = expression if len(expression) <= 80 else expression[:77] + "…"
                    self._problems.append(f"{shown} has no value: {e}")
                value, hidden = expression, False
            done += [text[at:start], value]
            secret = secret or hidden
            at = end
        return "".join(done) + text[at:], secret

    def _value(self, expression: str) -> tuple[str, bool]:
        if self._depth >= MAX_DEPTH:
            raise Unresolved(f"more than {MAX_DEPTH} expressions lie within one another")
        self._depth += 1
        before = len(self._problems)
        try:
            inner, hidden = self._text(expression)
            named = len(self._problems)
            name, delimiter, default = inner.partition(":-")
            try:
                value, secret = self._look_up(name)
                del self._problems[before:named]
            except Unresolved as e:
                if not delimiter:
                    # What is wrong further in explains it better.
                    raise (Unresolved() if named > before else e) from None
                del self._problems[before:]
                value, secret = self._text(default)
            return value, secret or hidden
        finally:
            self._depth -= 1

    def _is_meant_for_others(self, name: str) -> bool:
        """Whether an expression without a value is to stay as it is, for a shell or a regular expression."""
        kind, colon, _ = name.partition(":")
        if colon and kind.lower() in _KINDS:
            return False
        plain = re.fullmatch(r"\w+", name) and self._open[-1].rpartition(".")[2] in _HAS_VARIABLES
        return bool(plain or _SHELLS.fullmatch(name))

    def _look_up(self, name: str) -> tuple[str, bool]:
        kind, colon, rest = name.partition(":")
        kind = kind.lower() if colon else ""
        if kind == "file":
            return self._secret(self._file(rest), name), True
        if (match := _FILTERED.fullmatch(name)) and (found := self._filters.get(match["filter"])):
            value = found(match["key"])
            if value is None:
                raise Unresolved(f"config filter {match['filter']} has no {match['key']}")
            return self._secret(value, name), True
        if kind == "date":
            return _date(rest, self._now), False
        if kind == "env" and rest in self._environment:
            return self._text(self._environment[rest])
        if kind == "sys" and rest in self._system:
            return self._text(self._system[rest])
        plain = rest if colon else name
        if plain in self._open:
            raise Unresolved("it refers to itself: " + " → ".join((*self._open[self._open.index(plain) :], plain)))
        if plain in self._properties:
            self.used.add(plain)
            found_text = self._property(plain)
            if plain in self._unresolved:
                self._unresolved.add(self._open[-1])
            return found_text
        if self._system.get("propertiesImplementation") == ENVIRONMENT_FALLBACK and plain in self._environment:
            return self._text(self._environment[plain])
        raise Unresolved(_reason(kind, rest, name) + self._hint(name))

    def _hint(self, name: str) -> str:
        if not (name in self._environment or re.fullmatch(r"[A-Z][A-Z0-9_]*", name)):
            return ""
        start = f"start with -DpropertiesImplementation={ENVIRONMENT_FALLBACK}"
        return f"; for the environment's write ${{env:{name}}}, or {start}"

    def _secret(self, value: str, name: str) -> str:
        self._report.secret(value.strip(BLANKS), f"${{{name}}}")
        return value

    def _file(self, name: str) -> str:
        try:
            with (self._directory / Path(name).expanduser()).open("rb") as file:
                content = file.read(MAX_VALUE + 1)
        except (OSError, ValueError, RuntimeError) as e:
            raise Unresolved(f"{name!r} cannot be read: {getattr(e, 'strerror', None) or e}") from None
        if len(content) > MAX_VALUE:
            raise Unresolved(f"{name!r} is larger than 1 MiB")
        try:
            return content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise Unresolved(f"{name!r} is not UTF-8 text") from None


def _end(text: str, start: int) -> int:
    """Where the expression that starts there ends; -1 where it never does."""
    depth, at = 1, start + 2
    while depth:
        opening, closing = text.find("${", at), text.find("}", at)
        if closing < 0:
            return -1
        nested = 0 <= opening < closing
        depth += 1 if nested else -1
        at = opening + 2 if nested else closing + 1
    return at


def _reason(kind: str, rest: str, name: str) -> str:
    match kind:
        case "env":
            return f"the environment has no {rest}"
        case "sys":
            return f"give it with -D{rest}=…"
        case "java":
            return "there is no Java in this agent to ask"
        case _ if _FILTERED.fullmatch(name):
            return "no config filter of that name is listed"
        case _:
            return f"the file has no property {rest or name!r}"


def _date(pattern: str, now: datetime) -> str:
    """Return a time in the letters of java.text.SimpleDateFormat."""
    try:
        parts = tokens(pattern or "yyyy-MM-dd HH:mm:ss")
    except ValueError as e:
        raise Unresolved(f"it has {e}") from None
    done = []
    for part in parts:
        letters = part.letter * part.width if isinstance(part, Field) else ""
        if isinstance(part, str):
            done.append(part)
        elif letters == "SSS":
            done.append(f"{now.microsecond // 1000:03}")
        elif (found := _DATE.get(letters)) is not None:
            done.append(now.strftime(found))
        else:
            raise Unresolved(f"{letters!r} is not built for dates; built are: {' '.join(_DATE)} SSS")
    return "".join(done)


def _java_properties() -> dict[str, str]:
    """What a JVM's system properties would say here, as far as configurations ask for it."""
    uname = os.uname()
    try:
        here = str(Path.cwd())
    except FileNotFoundError:  # deleted under the process
        here = ""
    try:  # as a JVM does, whatever the environment says
        user = pwd.getpwuid(os.getuid())
        name, home = user.pw_name, user.pw_dir
    except KeyError:  # a number that nobody has, as containers like them
        name, home = os.environ.get("USER") or str(os.getuid()), os.environ.get("HOME", "/")
    return {
        "user.home": home,
        "user.name": name,
        "user.dir": here,
        "java.io.tmpdir": "/tmp",  # noqa: S108  # what a JVM says on Linux, whatever TMPDIR is
        "os.name": uname.sysname,
        "os.arch": {"x86_64": "amd64"}.get(uname.machine, uname.machine),
        "os.version": uname.release,
        "file.separator": "/",
        "path.separator": ":",
        "line.separator": "\n",
        "file.encoding": "UTF-8",
    }
