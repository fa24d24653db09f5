"""Wraps paragraphs and list items of the documentation that have a line of more than 118 columns: `./dev fmt`."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 118
ITEM = re.compile(r"^( *)([-*+]|\d+[.)]) +")
OTHER = re.compile(r"^(\||#|>|<|```|~~~|    |\[[^\]]+\]: )")
"""How lines begin that are no paragraph's: tables, headings, quotes, HTML, code, targets of links."""
MARK = re.compile(r"^([-*+>#|]|\d+[.)]) ?")
"""What would mean something else at the beginning of a line."""
GLUE = "\0"


def pages() -> list[Path]:
    """All that people write; docs/reference is generated."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def wrapped(text: str) -> str:
    """The same text, with no line too long but tables, code and words without a blank."""
    return "".join(
        f"{line}\n" for block, prose in _blocks(text.splitlines()) for line in (_fitting(block) if prose else block)
    )


def _blocks(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """A paragraph or an item of a list, and True; or a line that is neither."""
    block: list[str] = []
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith(("```", "~~~"))
        if fence or fenced or not line.strip() or (OTHER.match(line) and not block):
            if block:
                yield block, True
            yield [line], False
            block, fenced = [], fenced != fence
        elif block and (ITEM.match(line) or OTHER.match(line.lstrip())):
            yield block, True
            block = [line]
        else:
            block.append(line)
    if block:
        yield block, True


def _fitting(block: list[str]) -> list[str]:
    if all(len(line) <= WIDTH for line in block):
        return block
    item = ITEM.match(block[0])
    indent = item[0] if item else " " * (len(block[0]) - len(block[0].lstrip()))
    text = " ".join(line.strip() for line in block)[len(indent.strip()) :].strip()
    glued = re.sub(r"`[^`]{1,60}`", lambda code: code[0].replace(" ", GLUE), text)
    made = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
    made = [line.replace(GLUE, " ") for line in made]
    return block if any(MARK.match(line.strip()) for line in made[1:]) else made


def main() -> None:
    """Wrap them all; with `--check`, name those that are not and exit with 1."""
    left = [page for page in pages() if wrapped(page.read_text("utf-8")) != page.read_text("utf-8")]
    for page in left:
        if "--check" in sys.argv:
            print(f"{page.relative_to(ROOT)} has lines of more than {WIDTH} columns: ./dev fmt")
        else:
            page.write_text(wrapped(page.read_text("utf-8")), "utf-8")
    sys.exit("--check" in sys.argv and bool(left))


if __name__ == "__main__":
    main()
