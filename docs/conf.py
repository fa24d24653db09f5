"""Sphinx configuration of the documentation site, which `./dev docs` builds."""

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
myst_heading_anchors = 4  # the anchors of GitHub: links work on both
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
    """Register the extension. Called by Sphinx."""
    app.connect("source-read", adapt)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def adapt(app: Sphinx, document: str, source: list[str]) -> None:
    """Adapt a page for Sphinx, beyond plain Markdown.

    The lists of links in index.md become the navigation: a page missing there is an error. Links to texts outside
    docs/ become downloads.
    """
    source[0] = re.sub(r"\]\((?=(\.\./)+(?:[a-z]+/)?[A-Z]+\.md\))", "](path:", source[0])
    if document == app.config.root_doc:
        source[0] += "".join(toctree(heading, rest) for heading, rest in sections(source[0]))


def sections(text: str) -> list[tuple[str, str]]:
    """Return the second-level headings with their sections."""
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def toctree(caption: str, text: str) -> str:
    """Return a toctree of the pages that begin list items."""
    pages = re.findall(r"^- \[[^]]+\]\(([^)#:]+)\.md\)", text, re.MULTILINE)
    if not pages:
        return ""
    return "\n\n```{toctree}\n:hidden:\n:caption: " + caption + "\n\n" + "\n".join(pages) + "\n```\n"
