"""Check of words: docstrings, comments, and units in the names of constants. Part of `./dev lint`.

- A docstring begins with a noun phrase or an imperative, and its sentences have at most 25 words.
- Docstrings and comments have no terms that only this project would use.
- A constant that is a duration or a size has its unit in its name: `STOP_SECONDS`, `MAX_BATCH_BYTES`. Its docstring
  or its use decides: `sleep(STOP_SECONDS)`, `timeout=…`, `time.monotonic() + …`, `recv(READ_BYTES)`.

Only a reader sees whether a text says what is needed.
"""

from __future__ import annotations

import ast
import inspect
import io
import itertools
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("agent", "plugins", "sources", "channels", "interceptors", "sinks", "flafka")
DIRECTORIES = (*PRODUCT, "bench", "docs", "conf", "tests")
SCRIPTS = ("dev",)
EXCEPTIONS = {
    ("sinks/hbase/thrift.py", "FOREVER"): "a name of HBase: HConstants.FOREVER",
}
"""File and term or constant → reason why it stays."""
MAX_EXCEPTIONS = 10
LONGEST_SENTENCE_WORDS = 25
SENTENCE_END = re.compile(r"(?<=[.:!?])\s+|\n\s*\n|\n(?=[-*] )| {2,}")
"""End of a sentence, a paragraph, a list item, or a cell of a table."""
FIRST_WORDS = re.compile(
    r"^(What|Who|Whose|Whom|Whether|Where|When|How|Which|Why|It|Its|Those|These|They|Their|That|This|All|None|Nothing|"
    r"Same|The same|See|As|So|Of|And|Or|But|Also|Ones|Another|Both|Everything)\b"
)
"""A docstring begins with a noun phrase or an imperative."""
PRIVATE_TERMS = re.compile(
    r"\b(told|tells|onlookers?|whereabouts|standstills?|farewell|shaking|agreements?|cautions?|seal(?:s|ed)?|"
    r"comes? and goe?s?|made again|puts? again|offered again|goes on|held back|gives up what|"
    r"look(?:s|ed)? everywhere|nobody waits|(?<!dead[ -])(?<!pattern )letters?|claims?|those of|what is under way|"
    r"patience|at rest)\b",
    re.IGNORECASE,
)

TIME_UNITS = r"NANOSECONDS|NS|MICROSECONDS|MILLISECONDS|MILLIS|MS|SECONDS?|MINUTES?|HOURS?|DAYS?|WEEKS?|YEARS?"
SIZE_UNITS = r"BYTES?|KB|KIB|MB|MIB|GB|GIB|BITS"
UNITS = {
    "duration": re.compile(rf"(?:^|_)(?:{TIME_UNITS})(?:_|$)"),
    "size": re.compile(rf"(?:^|_)(?:{SIZE_UNITS})(?:_|$)"),
    "count": re.compile(r"(?:^|_)(?:EVENTS|RECORDS|ROWS|LINES|FILES|CHARACTERS|DIGITS|COUNT|RATE|PER)(?:_|$)"),
}
"""Kind of quantity → pattern of its units in names."""
WRITTEN_UNITS = {
    "duration": re.compile(
        r"(?<!per )(?<!a )(?<!each )\b(nanoseconds|microseconds|milliseconds|seconds|minutes|hours)\b", re.I
    ),
    "size": re.compile(r"(?<!per )\b([Bb]ytes|[KMG]i?B)\b"),
}
"""Kind of quantity → pattern of its units in docstrings. Rates are no durations."""
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
TIME_ARGUMENTS = {"timeout", "seconds", "timeout_seconds", "interval"}
TIME_CALLS = {"sleep", "wait", "wait_for"}
CLOCKS = {"monotonic", "perf_counter", "time"}
SIZE_CALLS = {"recv", "recvfrom", "bytearray", "read"}


def findings(path: Path) -> Iterator[str]:
    """Yield a line for each rule that this file breaks, without the named exceptions."""
    name = str(path.relative_to(ROOT))
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    for number, text in docstrings(tree):
        for fault, term in docstring_faults(text):
            if (name, term) not in EXCEPTIONS:
                yield f"{name}:{number}: {fault}: {' '.join(text.split())[:90]}"
    for number, text in comments(source):
        for match in PRIVATE_TERMS.finditer(text):
            if (name, match[0].lower()) not in EXCEPTIONS:
                yield f"{name}:{number}: private term {match[0]!r} in a comment: {text[:90]}"
    for number, constant, kind in dict.fromkeys(constants_without_unit(tree)):
        if (name, constant) not in EXCEPTIONS:
            yield f"{name}:{number}: {constant} is a {kind} without its unit in its name"


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, and of every string that stands alone behind an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            if (text := docstring_of(statement)) is not None:
                yield statement.lineno, text


def docstring_of(statement: ast.stmt) -> str | None:
    """Return the text of a statement that is only a string; None for other statements."""
    value = getattr(statement, "value", None)
    if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
        return inspect.cleandoc(value.value)
    return None


def docstring_faults(text: str) -> Iterator[tuple[str, str]]:
    """Yield the rules that one docstring breaks, each with the term that breaks it."""
    if first := FIRST_WORDS.match(text):
        yield f"begins with {first[0]!r}", first[0]
    longest = max(len(sentence.split()) for sentence in SENTENCE_END.split(text))
    if longest > LONGEST_SENTENCE_WORDS:
        yield f"a sentence of {longest} words", ""
    if term := PRIVATE_TERMS.search(" ".join(text.split())):
        yield f"private term {term[0]!r}", term[0].lower()


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment. Comments on consecutive lines are one, as terms may span them."""
    start, texts, last = 0, list[str](), -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if line != last + 1 and texts:
            yield start, " ".join(texts)
            texts = []
        if not texts:
            start = line
        texts.append(token.string.lstrip("# "))
        last = line
    if texts:
        yield start, " ".join(texts)


def constants_without_unit(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and kind of each constant that is a duration or a size but lacks a unit in its name."""
    for body in (tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))):
        for statement, following in itertools.pairwise(body):
            text = docstring_of(following)
            for name in numeric_constants(statement) if text else ():
                for kind, written in WRITTEN_UNITS.items():
                    if written.search(text) and not any(unit.search(name) for unit in UNITS.values()):
                        yield statement.lineno, name, kind
    for node in ast.walk(tree):
        for kind, value in quantities(node):
            name = value.id if isinstance(value, ast.Name) else value.attr if isinstance(value, ast.Attribute) else ""
            if CONSTANT.fullmatch(name) and not UNITS[kind].search(name):
                yield value.lineno, name, kind


def numeric_constants(statement: ast.stmt) -> Iterator[str]:
    """Yield the names of constants that a statement assigns numbers to."""
    if isinstance(statement, ast.Assign):
        targets, value = statement.targets, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets, value = [statement.target], statement.value
    else:
        return
    for target in targets:
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [*zip(target.elts, value.elts, strict=False)]
        for name, number in pairs:
            if isinstance(name, ast.Name) and CONSTANT.fullmatch(name.id) and is_number(number):
                yield name.id


def is_number(node: ast.expr) -> bool:
    """Return True for a number, and for arithmetic of numbers."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) and is_number(node.right)
    if isinstance(node, ast.UnaryOp):
        return is_number(node.operand)
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def quantities(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the operands of a call or a sum that are durations or sizes, each with its kind."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg in TIME_ARGUMENTS:
                yield "duration", keyword.value
        function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if function in TIME_CALLS and 1 <= len(node.args) <= 2:
            yield "duration", node.args[-1]
        if function in SIZE_CALLS and node.args:
            yield "size", node.args[0 if function.startswith("recv") else -1]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        for clock, operand in ((node.left, node.right), (node.right, node.left)):
            if isinstance(clock, ast.Call) and isinstance(clock.func, ast.Attribute) and clock.func.attr in CLOCKS:
                yield "duration", operand


def files() -> list[Path]:
    """Return the Python files of the tree."""
    modules = [path for name in DIRECTORIES for path in sorted((ROOT / name).rglob("*.py"))]
    return [*modules, *(ROOT / name for name in SCRIPTS)]


def main() -> int:
    """Print the findings; return 1 if there are any."""
    assert len(EXCEPTIONS) <= MAX_EXCEPTIONS, f"at most {MAX_EXCEPTIONS} exceptions"
    lines = [line for path in files() for line in findings(path)]
    print("\n".join(lines), end="\n" * bool(lines))
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
