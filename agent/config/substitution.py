"""Resolver of `${…}` in values: environment, `-D` properties, dates, other properties, files and config filters.

    ${env:HOME}  ${sys:user.name}  ${date:yyyy-MM-dd}  ${other.property}  ${file:/run/secrets/password}
    ${env:PORT:-44444}   with a default          ${${sys:stage}_BIND}   nested          $${kept}   as it is
    ${f1['KEY']}         the value of KEY in config filter f1.

Flume resolves a reference only if the property comes earlier in hash order; here every property can be referenced.
The value from a file or a config filter is not expanded, and is a secret. As in Flume, expansions of a shell, such as
`${file%.log}`, stay unchanged.
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
from flafka.agent.config.properties import JAVA_BLANKS, Property, component_path
from flafka.plugins.java.datepattern import Field, tokenize

Filter = Callable[[str], str | None]
"""Config filter: returns the value of a key, or None; raises UnresolvedExpression."""

ENVIRONMENT_FALLBACK = "org.apache.flume.node.EnvVarResolverProperties"
"""Value of `-DpropertiesImplementation=` with which a plain `${X}` may come from the environment."""

MAX_VALUE_BYTES = 1 << 20
"""Maximum length of a resolved value, in characters, and of a `${file:…}`, in bytes."""
MAX_DEPTH = 50
"""Maximum number of nested expressions."""

_FILTER_CALL = re.compile(r"""(?P<filter>[^\[\]]+)\[(?P<quote>['"]?)(?P<key>[-_a-zA-Z0-9]+)(?P=quote)\]""")
_PREFIXES = ("env", "sys", "java", "date", "file")
_SHELL_EXPANSION = re.compile(r"[#!]\w.*|\w+\[[@*]\].*|\w+(?:[%#/^,@]|:[=?+ \d]).*", re.DOTALL)
"""Shell expansion that is not a reference of Flume."""
_OPTIONS_WITH_VARIABLES = ("command", "shell", "replaceString")
"""Options whose values have variables or regex groups of their own, to which an unknown plain name belongs."""
_DATE_DIRECTIVES = {
    "yyyy": "%Y", "yy": "%y", "MMMM": "%B", "MMM": "%b", "MM": "%m", "dd": "%d", "HH": "%H", "hh": "%I",
    "mm": "%M", "ss": "%S", "EEEE": "%A", "EEE": "%a", "E": "%a", "a": "%p", "DDD": "%j", "Z": "%z", "z": "%Z",
}  # fmt: skip


class UnresolvedExpression(Exception):
    """Reason why an expression has no value. Empty if an expression inside it has been reported."""


class Resolver:
    """Resolver of expressions in values. Reports errors at the property that contains the expression."""

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
        """`directory` is the base of relative file names in `${file:…}`. `system` has `-D` properties.

        `filters` are config filters by name; the caller may add filters until an expression refers to them.
        """
        self._properties = properties
        self._report = report
        self._directory = directory
        self._system = {**_java_properties(), **system}
        self._environment = environment
        self._filters = filters
        self._now = datetime.now().astimezone()
        self.used: set[str] = set()
        """Names of all properties that an expression refers to."""
        self._resolved: dict[str, tuple[str, bool]] = {}
        self._unresolved: set[str] = set()
        self._resolving: list[str] = []
        self._problems: list[str] = []
        self._depth = 0

    def resolve(self, name: str) -> Property:
        """Return the property `name` with its expressions replaced by their values, trimmed as in Java.

        An expression without a value stays, is reported once as an error, and sets `resolved` to False. The result is
        cached.
        """
        text, _ = self._resolve_property(name)
        return replace(self._properties[name], value=text.strip(JAVA_BLANKS), resolved=name not in self._unresolved)

    def _resolve_property(self, name: str) -> tuple[str, bool]:
        """Return the value of a property, and True if it contains a secret. Errors are reported at this property."""
        if name not in self._resolved:
            prop = self._properties[name]
            self._resolving.append(name)
            outer, self._problems = self._problems, []
            text, secret = self._expand(prop.value)
            for problem in self._problems:
                self._report.error(prop.place, component_path(name), problem)
            if self._problems:
                self._unresolved.add(name)
            self._problems = outer
            self._resolving.pop()
            if secret:
                self._report.hide_secret(text.strip(JAVA_BLANKS), prop.value)
            self._resolved[name] = text, secret
        return self._resolved[name]

    def _expand(self, text: str) -> tuple[str, bool]:
        """Return the text with its expressions resolved, and True if it contains a secret."""
        parts, length, secret, offset = [], len(text), False, 0
        while (start := text.find("${", offset)) >= 0:
            end = _expression_end(text, start)
            if end < 0:
                break
            if start > offset and text[start - 1] == "$":
                parts.append(text[offset : start - 1] + "${")
                offset = start + 2
                continue
            expression = text[start:end]
            try:
                value, hidden = self._evaluate(expression[2:-1])
                length += len(value)
                if length > MAX_VALUE_BYTES:
                    raise UnresolvedExpression("the value would be larger than 1 MiB")
            except UnresolvedExpression as e:
                if e.args and not self._is_foreign_expression(expression[2:-1]):
                    shown = expression if len(expression) <= 80 else expression[:77] + "…"
                    self._problems.append(f"{shown} has no value: {e}")
                value, hidden = expression, False
            parts += [text[offset:start], value]
            secret = secret or hidden
            offset = end
        return "".join(parts) + text[offset:], secret

    def _evaluate(self, expression: str) -> tuple[str, bool]:
        """Return the value of one expression, given without `${` and `}`, and True if the value is a secret.

        Raises UnresolvedExpression if it has neither a value nor a default.
        """
        if self._depth >= MAX_DEPTH:
            raise UnresolvedExpression(f"more than {MAX_DEPTH} expressions are nested")
        self._depth += 1
        before = len(self._problems)
        try:
            inner, hidden = self._expand(expression)
            named = len(self._problems)
            name, delimiter, default = inner.partition(":-")
            try:
                value, secret = self._look_up(name)
                del self._problems[before:named]
            except UnresolvedExpression as e:
                if not delimiter:
                    # The error of the inner expression is the more precise one.
                    raise (UnresolvedExpression() if named > before else e) from None
                del self._problems[before:]
                value, secret = self._expand(default)
            return value, secret or hidden
        finally:
            self._depth -= 1

    def _is_foreign_expression(self, name: str) -> bool:
        """Return True if an expression without a value belongs to a shell or a regular expression."""
        kind, colon, _ = name.partition(":")
        if colon and kind.lower() in _PREFIXES:
            return False
        plain = re.fullmatch(r"\w+", name) and self._resolving[-1].rpartition(".")[2] in _OPTIONS_WITH_VARIABLES
        return bool(plain or _SHELL_EXPANSION.fullmatch(name))

    def _look_up(self, name: str) -> tuple[str, bool]:
        """Return the value of a name, and True if the value is a secret. Raises UnresolvedExpression."""
        kind, colon, argument = name.partition(":")
        kind = kind.lower() if colon else ""
        if kind == "file":
            return self._hide(self._read_file(argument), name), True
        if (match := _FILTER_CALL.fullmatch(name)) and (config_filter := self._filters.get(match["filter"])):
            value = config_filter(match["key"])
            if value is None:
                raise UnresolvedExpression(f"config filter {match['filter']} has no {match['key']}")
            return self._hide(value, name), True
        if kind == "date":
            return _format_date(argument, self._now), False
        if kind == "env" and argument in self._environment:
            return self._expand(self._environment[argument])
        if kind == "sys" and argument in self._system:
            return self._expand(self._system[argument])
        plain = argument if colon else name
        if plain in self._resolving:
            raise UnresolvedExpression(
                "it refers to itself: " + " → ".join((*self._resolving[self._resolving.index(plain) :], plain))
            )
        if plain in self._properties:
            self.used.add(plain)
            resolved = self._resolve_property(plain)
            if plain in self._unresolved:
                self._unresolved.add(self._resolving[-1])
            return resolved
        if self._system.get("propertiesImplementation") == ENVIRONMENT_FALLBACK and plain in self._environment:
            return self._expand(self._environment[plain])
        raise UnresolvedExpression(_reason(kind, argument, name) + self._hint(name))

    def _hint(self, name: str) -> str:
        """Return the advice on environment variables for a name that is one or looks like one; else an empty text."""
        if not (name in self._environment or re.fullmatch(r"[A-Z][A-Z0-9_]*", name)):
            return ""
        start = f"start with -DpropertiesImplementation={ENVIRONMENT_FALLBACK}"
        return f"; for an environment variable write ${{env:{name}}}, or {start}"

    def _hide(self, value: str, name: str) -> str:
        """Return `value`, and redact it in all diagnostics."""
        self._report.hide_secret(value.strip(JAVA_BLANKS), f"${{{name}}}")
        return value

    def _read_file(self, name: str) -> str:
        """Return the text of a file without its final line ends. Raises UnresolvedExpression, also above 1 MiB."""
        try:
            with (self._directory / Path(name).expanduser()).open("rb") as file:
                content = file.read(MAX_VALUE_BYTES + 1)
        except (OSError, ValueError, RuntimeError) as e:
            raise UnresolvedExpression(f"{name!r} cannot be read: {getattr(e, 'strerror', None) or e}") from None
        if len(content) > MAX_VALUE_BYTES:
            raise UnresolvedExpression(f"{name!r} is larger than 1 MiB")
        try:
            return content.decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise UnresolvedExpression(f"{name!r} is not UTF-8 text") from None


def _expression_end(text: str, start: int) -> int:
    """Return the index after the expression that starts at `start`; -1 if it has no end."""
    depth, offset = 1, start + 2
    while depth:
        opening, closing = text.find("${", offset), text.find("}", offset)
        if closing < 0:
            return -1
        nested = 0 <= opening < closing
        depth += 1 if nested else -1
        offset = opening + 2 if nested else closing + 1
    return offset


def _reason(kind: str, argument: str, name: str) -> str:
    """Return the reason why an expression of this kind has no value."""
    match kind:
        case "env":
            return f"there is no environment variable {argument}"
        case "sys":
            return f"set it with -D{argument}=…"
        case "java":
            return "this agent does not run in Java"
        case _ if _FILTER_CALL.fullmatch(name):
            return "no config filter has this name: list it in configfilters"
        case _:
            return f"the file has no property {argument or name!r}"


def _format_date(pattern: str, now: datetime) -> str:
    """Return the time `now` in a pattern of java.text.SimpleDateFormat; a default pattern if it is empty.

    Raises UnresolvedExpression for a wrong or unsupported pattern.
    """
    try:
        parts = tokenize(pattern or "yyyy-MM-dd HH:mm:ss")
    except ValueError as e:
        raise UnresolvedExpression(f"the pattern has {e}") from None
    done = []
    for part in parts:
        letters = part.letter * part.width if isinstance(part, Field) else ""
        if isinstance(part, str):
            done.append(part)
        elif letters == "SSS":
            done.append(f"{now.microsecond // 1000:03}")
        elif (directive := _DATE_DIRECTIVES.get(letters)) is not None:
            done.append(now.strftime(directive))
        else:
            raise UnresolvedExpression(
                f"{letters!r} is not supported in dates; supported are {' '.join(_DATE_DIRECTIVES)} SSS"
            )
    return "".join(done)


def _java_properties() -> dict[str, str]:
    """Return the system properties that a JVM would have in this process, as far as configurations use them."""
    uname = os.uname()
    try:
        directory = str(Path.cwd())
    except FileNotFoundError:  # the working directory is deleted
        directory = ""
    try:  # from the user database, as a JVM does, not from the environment
        user = pwd.getpwuid(os.getuid())
        name, home = user.pw_name, user.pw_dir
    except KeyError:  # a user ID without an entry, frequent in containers
        name, home = os.environ.get("USER") or str(os.getuid()), os.environ.get("HOME", "/")
    return {
        "user.home": home,
        "user.name": name,
        "user.dir": directory,
        "java.io.tmpdir": "/tmp",  # noqa: S108  # the JVM's value on Linux, independent of TMPDIR
        "os.name": uname.sysname,
        "os.arch": {"x86_64": "amd64"}.get(uname.machine, uname.machine),
        "os.version": uname.release,
        "file.separator": "/",
        "path.separator": ":",
        "line.separator": "\n",
        "file.encoding": "UTF-8",
    }
