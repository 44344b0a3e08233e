"""The fixtures of `tests/`, for the suites here."""

from tests.conftest import (
    database_maker,
    deployment,
    engine,
    keys,
    postgres_url,
    pytest_configure,
    redis_client,
    servers,
    sessions_closed,
    settings_of_others,
    taskbridge_postgres_url,
)

__all__ = [
    "database_maker",
    "deployment",
    "engine",
    "keys",
    "postgres_url",
    "pytest_configure",
    "redis_client",
    "servers",
    "sessions_closed",
    "settings_of_others",
    "taskbridge_postgres_url",
]
