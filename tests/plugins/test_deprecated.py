"""Names of before go on working, with a warning."""

import importlib
import sys

import pytest

import plugins
from plugins import deprecated


def test_a_module_that_moved_is_imported_by_its_old_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for old, new in deprecated.MODULES.items():
        monkeypatch.delitem(sys.modules, old, raising=False)
        with pytest.warns(DeprecationWarning, match=f"{old} is {new} now"):
            assert importlib.import_module(old) is importlib.import_module(new)


def test_a_name_that_changed_is_found_by_its_old_one() -> None:
    for old, new in deprecated.NAMES.items():
        with pytest.warns(DeprecationWarning, match=f"plugins.{old} is plugins.{new} now"):
            assert getattr(plugins, old) is getattr(plugins, new)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        plugins.nothing  # noqa: B018  # naming it is what is tested
