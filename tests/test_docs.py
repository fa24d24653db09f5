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


def test_the_components_of_contributing_md_pass_the_kit_and_the_type_checker(tmp_path, pytestconfig):
    import os
    import re
    import subprocess
    import sys

    page = (DOCS.parent / "CONTRIBUTING.md").read_text()
    for code, name in re.findall(r'```python\n("""(\w+\.py).*?)```', page, re.S):
        (tmp_path / name).write_text(code)
    assert {path.name for path in tmp_path.iterdir()} == {"site_plugin.py", "test_site_plugin.py"}
    ours = str(DOCS.parent)
    environment = {**os.environ, "PYTHONPATH": f"{ours}{os.pathsep}{tmp_path}", "MYPYPATH": ours}
    cache = f"--cache-dir={pytestconfig.cache.mkdir('mypy')}"
    checks = {
        "mypy": ["--strict", cache, "--config-file", os.devnull, "--follow-imports=silent", "."],
        "pytest": ["-q", "-p", "no:cacheprovider", "test_site_plugin.py"],
    }
    for module, arguments in checks.items():
        command = [sys.executable, "-m", module, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
