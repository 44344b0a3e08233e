"""Test pipelines with runs in the test's own process, on real servers.

`taskbridge.testing.plugin` has fixtures for pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskbridge.common.lazy import on_first_use

if TYPE_CHECKING:
    from taskbridge.testing.inline import assert_notified, drain, drain_all, notified

__all__ = ["assert_notified", "drain", "drain_all", "notified"]

if not TYPE_CHECKING:
    # The plugin of pytest costs nothing until a test uses one of its fixtures.
    __getattr__ = on_first_use(__name__, {"inline": "assert_notified drain drain_all notified"})
