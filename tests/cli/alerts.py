"""A pipeline with criteria, in a module of the test's directory, and messages for it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.cli.program import Program

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
