"""What tests of deliveries need."""

from __future__ import annotations

from tests.failures.conftest import drill

__all__ = ["drill"]
