"""What the compose file passes on and asks for is what the settings and the example of `.env` have."""

from __future__ import annotations

import re
from pathlib import Path

from taskbridge.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")


def test_every_setting_reaches_the_services() -> None:
    passed = set(re.findall(r"^    (TASKBRIDGE_[A-Z_]+):", COMPOSE, re.MULTILINE))
    assert passed == {f"TASKBRIDGE_{name.upper()}" for name in Settings.__slots__}


def test_every_variable_of_the_compose_file_is_in_the_example_and_passwords_have_no_value() -> None:
    example = (ROOT / ".env.example").read_text(encoding="utf-8")
    named = set(re.findall(r"\$\{([A-Z_]+)", COMPOSE))
    assert {"POSTGRES_PASSWORD", "REDIS_PASSWORD", "FLOWER_PASSWORD"} < named
    assert named == set(re.findall(r"^(?:# )?([A-Z_]+)=", example, re.MULTILINE)) - {"TASKBRIDGE_PIPELINES"}
    assert set(re.findall(r"^([A-Z]+_PASSWORD=.*)$", example, re.MULTILINE)) == {
        f"{name}=" for name in named if name.endswith("_PASSWORD")
    }
