"""A drill of each test's own."""

from __future__ import annotations

import pytest

from tests.deployment import Deployment
from tests.failures.drill import Drill


@pytest.fixture
def drill(deployment: Deployment) -> Drill:
    return Drill(deployment)
