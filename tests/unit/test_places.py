"""Whoever reads that a server cannot be used can see which one was meant, and never its password."""

from __future__ import annotations

import psycopg
import pytest
import redis

from taskbridge.common import server_errors
from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import Unavailable
from taskbridge.process.runtime import Runtime
from taskbridge.settings import Settings

PASSWORD = "s3cr3t@Pa55"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has connected to nothing."""
    monkeypatch.setattr(server_errors, "_addresses", {"Postgres": set(), "Redis": set()})


def said(error: Exception) -> str:
    with pytest.raises(Unavailable) as caught, translated_errors():
        raise error
    return caught.value.what


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:s3cr3t%40Pa55@db.example/d", "db.example:5432"),
        ("postgresql://u:s3cr3t%40Pa55@[::1]:1/d", "[::1]:1"),
        ("postgresql:///d?host=/var/run/postgresql", "/var/run/postgresql"),
        ("postgresql://u:s3cr3t%40Pa55@/d?host=a:1&host=b:2", "a:1, b:2"),
        ("rediss://:s3cr3t%40Pa55@gate.example/0", "gate.example:6379"),
        ("redis://:s3cr3t%40Pa55@[::1]:1/0", "[::1]:1"),
    ],
)
def test_a_time_out_whose_error_has_no_address_is_told_with_it(url: str, place: str) -> None:
    if url.startswith("postgresql"):
        assert Runtime(Settings(postgres_url=url)).engine is not None
        told = said(psycopg.OperationalError("connection timeout expired"))
        assert told == f"Postgres does not answer in time ({place})"
    else:
        assert Runtime(Settings(redis_url=url)).redis is not None
        assert said(redis.TimeoutError("Timeout reading from socket")) == f"Redis does not answer in time ({place})"


def test_a_process_with_two_gates_names_the_one_that_the_error_is_of() -> None:
    for port in (1, 2):
        assert Runtime(Settings(redis_url=f"redis://:{PASSWORD}@127.0.0.1:{port}/0")).redis is not None
        with pytest.raises(Unavailable) as caught, translated_errors():
            Runtime(Settings(redis_url=f"redis://127.0.0.1:{port}/0")).redis.ping()
        assert caught.value.what == f"Redis cannot be reached (127.0.0.1:{port})"
    assert said(redis.TimeoutError("Timeout reading from socket")) == "Redis does not answer in time"
