"""What tests fork from has imported what is on its list."""

from __future__ import annotations

import importlib

from tests.forked import PRELOADED


def test_each_module_that_is_imported_before_the_fork_is_there() -> None:
    for module in PRELOADED:
        importlib.import_module(module)
