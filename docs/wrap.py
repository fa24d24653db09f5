"""Wrapping of paragraphs and list items of the documentation at 118 columns: `./dev fmt`."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 118
ITEM = re.compile(r"^( *)([-*+]|\d+[.)]) +")
NO_PARAGRAPH = re.compile(r"^(\||#|>|<|```|~~~|    |\[[^\]]+\]: )")
"""Start of a line outside paragraphs: table, heading, quote, HTML, code, link target."""
LINE_MARKUP = re.compile(r"^([-*+>#|]|\d+[.)]) ?")
"""Text with a meaning in Markdown at the start of a line."""
NO_BREAK = "\0"


def pages() -> list[Path]:
    """Return the handwritten pages."""
    return [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs/internals").glob("*.md")),
    ]


def wrap(text: str) -> str:
    """Return a text with wrapped paragraphs; tables, code and long words stay."""
    return "".join(
        f"{line}\n"
        for block, is_prose in _blocks(text.splitlines())
        for line in (_wrap_block(block) if is_prose else block)
    )


def _blocks(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield each paragraph and list item with True, and each other line with False."""
    block: list[str] = []
    fenced = False
    for line in lines:
        fence = line.lstrip().startswith(("```", "~~~"))
        if fence or fenced or not line.strip() or (NO_PARAGRAPH.match(line) and not block):
            if block:
                yield block, True
            yield [line], False
            block, fenced = [], fenced != fence
        elif block and (ITEM.match(line) or NO_PARAGRAPH.match(line.lstrip())):
            yield block, True
            block = [line]
        else:
            block.append(line)
    if block:
        yield block, True


def _wrap_block(block: list[str]) -> list[str]:
    if all(len(line) <= WIDTH for line in block):
        return block
    item = ITEM.match(block[0])
    indent = item[0] if item else " " * (len(block[0]) - len(block[0].lstrip()))
    text = " ".join(line.strip() for line in block)[len(indent.strip()) :].strip()
    glued = re.sub(r"`[^`]{1,60}`", lambda code: code[0].replace(" ", NO_BREAK), text)
    lines = textwrap.wrap(
        glued,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=" " * len(indent),
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [line.replace(NO_BREAK, " ") for line in lines]
    return block if any(LINE_MARKUP.match(line.strip()) for line in lines[1:]) else lines


def main() -> None:
    """Wrap all pages; with `--check`, list unwrapped ones and exit with code 1."""
    unwrapped = [page for page in pages() if wrap(page.read_text("utf-8")) != page.read_text("utf-8")]
    for page in unwrapped:
        if "--check" in sys.argv:
            print(f"{page.relative_to(ROOT)} has lines of more than {WIDTH} columns: ./dev fmt")
        else:
            page.write_text(wrap(page.read_text("utf-8")), "utf-8")
    sys.exit("--check" in sys.argv and bool(unwrapped))


if __name__ == "__main__":
    main()
