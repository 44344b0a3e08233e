"""What tests of deliveries need."""

from __future__ import annotations

from tests.failures.conftest import drill
from tests.traces.conftest import spans

__all__ = ["drill", "spans"]
