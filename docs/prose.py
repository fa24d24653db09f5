"""Check the docstrings of the product: first words, length of sentences, and terms that only this project would use.

Only a reader sees whether a text says what is needed. `docs/prose-unfinished.txt` names the files that are not held
to these rules yet. It only shrinks: a file without findings has to leave it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UNFINISHED = ROOT / "docs/prose-unfinished.txt"
PACKAGES = ("agent", "plugins", "sources", "channels", "interceptors", "sinks", "bench", "docs", "flafka")
LONGEST_SENTENCE_WORDS = 25
FIRST_WORDS = re.compile(
    r"^(What|Who|Whose|Whom|Whether|Where|When|How|Which|Why|It|Its|Those|These|They|Their|That|This|All|None|Nothing|"
    r"Same|The same|See|As|So|Of|And|Or|But|Also|Ones|Another|Both|Everything)\b"
)
"""A docstring begins with a noun phrase or an imperative."""
PRIVATE_TERMS = re.compile(
    r"\b(told|tells|onlookers?|whereabouts|standstills?|farewell|shaking|agreements?|cautions?|seal(?:s|ed)?|"
    r"come and go|made again|puts? again|offered again|goes on|held back|gives up what|look(?:s|ed)? everywhere|"
    r"nobody waits|(?<!dead )letters?|claims?|those of|what is under way)\b",
    re.IGNORECASE,
)


def findings(path: Path) -> Iterator[str]:
    """Yield a line for each rule that a docstring of this file breaks."""
    for number, text in docstrings(ast.parse(path.read_text())):
        for fault in faults(text):
            yield f"{path.relative_to(ROOT)}:{number}: {fault}: {text[:90]}"


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, and of every string that stands alone behind an assignment."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = getattr(statement, "value", None)
            if isinstance(statement, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, " ".join(value.value.split())


def faults(text: str) -> Iterator[str]:
    """Yield the rules that one docstring breaks."""
    if first := FIRST_WORDS.match(text):
        yield f"begins with {first[0]!r}"
    longest = max(len(sentence.split()) for sentence in re.split(r"(?<=[.:!?])\s+", text))
    if longest > LONGEST_SENTENCE_WORDS:
        yield f"a sentence of {longest} words"
    if term := PRIVATE_TERMS.search(text):
        yield f"private term {term[0]!r}"


def main() -> int:
    """Print the findings; return 1 where there are some, or where a file is done and still in the list.

    With `--shorten`, take such files out of the list.
    """
    listed = {*UNFINISHED.read_text().split()}
    files = [
        path for name in PACKAGES for path in sorted([ROOT / name, *(ROOT / name).rglob("*.py")]) if path.is_file()
    ]
    faulty = {str(path.relative_to(ROOT)): found for path in files if (found := [*findings(path)])}
    done = listed - faulty.keys()
    if "--shorten" in sys.argv:
        UNFINISHED.write_text("".join(f"{name}\n" for name in sorted(listed - done)))
        return 0
    for name in faulty.keys() - listed:
        print("\n".join(faulty[name]))
    for name in sorted(done):
        print(f"{name} is done: take it out of docs/{UNFINISHED.name} (python docs/prose.py --shorten)")
    return int(bool(done or faulty.keys() - listed))


if __name__ == "__main__":
    sys.exit(main())
