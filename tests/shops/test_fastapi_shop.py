"""The example with FastAPI: how little of TaskBridge is in it, and its orders while processes are killed."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import make_url

from taskbridge.testing.servers import open_directory
from verification.shops import ROOT, Shop, survive

FOLDER = ROOT / "examples/fastapi_shop"
MOST_LINES = 15
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


def lines_of_taskbridge(page: Path) -> list[str]:
    """Return the lines that name TaskBridge, without the pipeline: its declaration and its handler."""
    text = page.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text)):
        of_it: list[ast.AST] = []
        if isinstance(node, ast.FunctionDef) and any("pipeline" in ast.dump(one) for one in node.decorator_list):
            of_it = [*node.decorator_list, node]
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):  # a docstring
            of_it = [node]
        for one in of_it:
            assert isinstance(one, (ast.expr, ast.stmt))
            for number in range(one.lineno, (one.end_lineno or one.lineno) + 1):
                lines[number - 1] = ""
    return [line.strip() for line in lines if re.search(r"taskbridge|\bbridge\b", line, re.IGNORECASE)]


def test_the_shop_has_few_lines_of_taskbridge_and_no_sql_of_its_own() -> None:
    pages = [page for page in FOLDER.glob("*.py") if not page.name.startswith("test_")]
    found = [line for page in pages for line in lines_of_taskbridge(page)]
    assert "bridge = taskbridge.install(app)" in found
    assert len(found) <= MOST_LINES, found
    for page in pages:
        assert not re.search(r"execute|\b(TRIGGER|LISTEN|NOTIFY)\b", page.read_text(encoding="utf-8")), page.name


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
