"""A package whose modules are imported when one of their names is first used."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["on_first_use"]


def on_first_use(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's `__getattr__`; `modules` has, for each module, the names to import from it, space-separated.

    A package without its own `__all__` gets one with these names.
    """
    module_of = {name: f"{package}.{module}" for module, names in modules.items() for name in names.split()}

    def find(name: str) -> Any:
        if name == "__all__":
            return sorted(module_of)
        module = module_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
