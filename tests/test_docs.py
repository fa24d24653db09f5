"""The generated documentation is the present one."""

import importlib.util
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def test_components_page_is_up_to_date():
    spec = importlib.util.spec_from_file_location("build", DOCS / "build.py")
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    assert (DOCS / "components.md").read_text() == build.page(), "run ./dev docs"


def test_links_between_pages_lead_somewhere():
    import re

    for page in [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|<)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
