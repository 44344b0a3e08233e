"""A world of each test's own."""

from __future__ import annotations

import pytest

from tests.deployment import Deployment
from tests.second.world import World


@pytest.fixture
def world(deployment: Deployment) -> World:
    return World(deployment)
