"""What tests fork from has imported what is on its list."""

from __future__ import annotations

import importlib

import pytest

from tests.forked import PRELOADED


@pytest.mark.parametrize("module", PRELOADED)
def test_each_module_that_is_imported_before_the_fork_is_there(module: str) -> None:
    importlib.import_module(module)
