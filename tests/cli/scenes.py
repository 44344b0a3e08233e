"""What commands find: files, pipelines, tenants in some state; and what they leave in Postgres and in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import redis
from sqlalchemy import Engine

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Spacing
from taskbridge.gate import Answer, Blame, Gate, Keys, Outcome, Settlement
from taskbridge.gate.message import lua_message
from taskbridge.integration.app import app
from tests.cli.program import Program
from tests.runs import begin, settle


def count(engine: Engine, statement: str = "SELECT count(*) FROM taskbridge.records") -> int:
    with engine.connect() as connection:
        number: int = connection.exec_driver_sql(statement).scalar_one()
    return number


def events(client: redis.Redis, prefix: str) -> int:
    """How many events the gate holds in the hashes of its runners."""
    values: list[Any] = [client.hget(key, "events") for key in client.scan_iter(f"{prefix}:runner:*")]
    return sum(map(int, values))


def stood(engine: Engine, kind: str, seconds: int) -> None:
    """Let the last round of the pipeline invoices have been so many seconds ago."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO taskbridge.tails (pipeline, kind, snapshot, stored_at) "
            "VALUES ('invoices', %(kind)s, pg_current_snapshot(), now() - %(seconds)s * interval '1 s') "
            "ON CONFLICT (pipeline, kind) DO UPDATE SET stored_at = excluded.stored_at",
            {"kind": kind, "seconds": seconds},
        )


HEADER = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"


def line(number: str, tenant: str = "France", quantity: str = "1", price: str = "2.50") -> str:
    return f"{number},S1,THING,{quantity},2011-12-01T08:12:00,{price},17850,{tenant}"


RETRY_MS = 300_000


def hold_back(
    client: redis.Redis,
    keys: Keys,
    tenant: str,
    *,
    blame: Blame = Blame.NOBODY,
    paused: bool = False,
) -> Gate:
    """Let a run of the tenant fail, which blames the pipeline or nobody, or find it `paused`; return the gate."""
    gate = Gate(client, keys, message=lua_message(app))
    gate.notify("invoices", tenant, Spacing(delay=200))
    (runner,) = gate.look("invoices", [tenant])
    assert runner.token is not None
    key = RunKey("invoices", tenant, runner.token)
    assert begin(gate, key) is not None
    failed = Settlement(Outcome.RETRY, failed=True, retry_ms=RETRY_MS, blame=blame)
    answer = settle(gate, key, Settlement(Outcome.PAUSED) if paused else failed, Spacing(delay=200))
    assert answer is Answer.HELD
    client.delete(*keys.queues)
    return gate


MODULE = """
from taskbridge import Criterion, DelaySinceLastRun, pipeline
from taskbridge.handlers.journal import journal

CRITERIA = [Criterion("$.level", level, "$.service", delay) for level, delay in {criteria!r}.items()]
pipeline("alerts", policy=DelaySinceLastRun(CRITERIA))(journal)
pipeline("invoices")(journal)
"""


def declare(program: Program, module: str = "alerting", **criteria: float) -> dict[str, str]:
    """Write a module whose pipeline `alerts` has a delay for each level; return the variable that names it."""
    text = MODULE.format(criteria=criteria or {"ERROR": 300.0, "WARNING": 900.0})
    (program.directory / f"{module}.py").write_text(text, encoding="utf-8")
    return {"TASKBRIDGE_PIPELINES": module}


def alert(level: str = "ERROR", service: str = "billing", **more: Any) -> str:
    return json.dumps({"level": level, "service": service, **more})


def write(path: Path, lines: Iterable[str | bytes]) -> Path:
    encoded = (line if isinstance(line, bytes) else line.encode() for line in lines)
    path.write_bytes(b"".join(line + b"\n" for line in encoded))
    return path
