"""How Sphinx makes the site of docs/. `./dev docs` calls it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]

project = "Flafka"
version = release = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
html_title = f"Flafka {version}"
extensions = ["myst_parser"]
myst_heading_anchors = 4  # as GitHub makes them, so that links work here and there
root_doc = "index"
exclude_patterns = ["samples"]
nitpicky = True
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
pygments_style, pygments_dark_style = "default", "github-dark"


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", adapted)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def adapted(app: Sphinx, document: str, source: list[str]) -> None:
    """What plain Markdown cannot say to Sphinx.

    The lists of links in index.md are the navigation, too: a page that none of them names is an error. Texts that lie
    outside of docs/ are handed out as they are.
    """
    source[0] = re.sub(r"\]\((?=(\.\./)+[A-Z]+\.md\))", "](path:", source[0])
    if document == app.config.root_doc:
        source[0] += "".join(toctree(heading, rest) for heading, rest in sections(source[0]))


def sections(text: str) -> list[tuple[str, str]]:
    """Second headings, each with what stands below it."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def toctree(caption: str, text: str) -> str:
    """The pages that items of lists begin with, as Sphinx wants them."""
    pages = re.findall(r"^- \[[^]]+\]\(([^)#:]+)\.md\)", text, re.MULTILINE)
    if not pages:
        return ""
    return "\n\n```{toctree}\n:hidden:\n:caption: " + caption + "\n\n" + "\n".join(pages) + "\n```\n"
