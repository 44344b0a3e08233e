"""The example with FastAPI: how little of TaskBridge is in it, and its orders while processes are killed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from sqlalchemy import make_url

from taskbridge.testing.servers import open_directory
from verification.shops import ROOT, Shop, survive

FOLDER = ROOT / "examples/fastapi_shop"
TASKBRIDGE = "from taskbridge.cli.main import main; main()"


def variables(postgres_url: str, redis_url: str) -> dict[str, str]:
    url = make_url(postgres_url).set(drivername="postgresql+psycopg")
    return {
        "TASKBRIDGE_POSTGRES_URL": postgres_url,
        "TASKBRIDGE_REDIS_URL": redis_url,
        "SHOP_DATABASE_URL": url.render_as_string(hide_password=False),
        "PYTHONPATH": f"{ROOT / 'examples'}{os.pathsep}{ROOT}",
    }


SHOP = Shop(
    web=("-m", "uvicorn", "fastapi_shop.web:app", "--port", "{port}", "--log-level", "warning"),
    worker=("-m", "celery", "-A", "fastapi_shop.sync", "worker"),
    prepare=(
        ("-m", "fastapi_shop.create_tables"),
        ("-c", TASKBRIDGE, "migrate"),
        ("-c", TASKBRIDGE, "adopt", "orders", "--tenant", "customer", "--key", "id"),
    ),
    environment=variables,
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_orders_get_through_while_each_process_is_killed_in_turn() -> None:
    with open_directory() as folder:
        survive(SHOP, folder)


@pytest.mark.e2e
def test_its_own_tests_pass() -> None:
    """In a process of their own: their pipeline is called as that of another shop."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    # A machine that runs many tests may be slow.
    environment = {**os.environ, "TASKBRIDGE_NOTIFY_TIMEOUT": "10"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "13 passed" in ended.stdout
