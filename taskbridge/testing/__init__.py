"""Test pipelines with runs in the test's own process, on real servers.

`taskbridge.testing.plugin` has fixtures for pytest.
"""

from __future__ import annotations

from taskbridge.testing.inline import assert_notified, drain, drain_all, notified

__all__ = ["assert_notified", "drain", "drain_all", "notified"]
