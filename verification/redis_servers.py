"""What 1, 10 and 100 Redis servers carry: arithmetic over the measured CPU times in docs/explanation/capacity.md.

`python -m verification.redis_servers` prints the table, also into that page. Servers are planned to be half busy.
Either the load is spread evenly, or each of 1,000 pipelines is on one server; then the busiest server is the limit. The
size of the pipelines follows Zipf's law, and the largest are placed first, on the emptiest server.
"""

from __future__ import annotations

import heapq
import re
from pathlib import Path
from typing import Final

from verification.printing.printed import Printed

PAGE: Final = Printed(Path(__file__).resolve().parents[1] / "docs" / "explanation" / "capacity.md", "redis servers")
SERVERS: Final = (1, 10, 100)
PIPELINES: Final = 1_000
BUSY: Final = 0.5


def units() -> dict[str, tuple[float, float, float]]:
    """Return, by kind of load, the microseconds of Redis and of Postgres for a unit, and its events."""
    found: dict[str, tuple[float, float, float]] = {}
    for title, events in {"Lone events": 1, "Bursts of single events": 50, "Imports": 10}.items():
        table = PAGE.page.read_text(encoding="utf-8").split(f"\n{title}")[1]
        redis, postgres = (
            float(re.findall(rf"^\| {name} \| \d+ \| ([\d,.]+)", table, re.MULTILINE)[0].replace(",", ""))
            for name in ("Redis", "Postgres")
        )
        found[title.split(" of ")[0].lower()] = (redis, postgres, events)
    return found


def effective(servers: int) -> float:
    """Return how many evenly used servers carry as much as this many, if each pipeline is on one of them."""
    loads = [0.0] * servers
    for rank in range(1, PIPELINES + 1):
        heapq.heapreplace(loads, loads[0] + 1 / rank)
    return sum(loads) / max(loads)


def markdown() -> str:
    """Return the table as Markdown."""
    lines = [
        "| load | Redis | spread evenly: events/s | Postgres cores | each pipeline on one: events/s | Postgres cores |",
        f"| --- |{' ---: |' * 5}",
    ]
    for load, (redis, postgres, events) in units().items():
        for servers in SERVERS:
            carried = (BUSY * 1e6 / redis * count for count in (servers, effective(servers)))
            cells = [f"{each * events:,.0f} | {each * postgres / 1e6 / BUSY:,.0f}" for each in carried]
            lines.append(f"| {load} | {servers} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write(markdown())
    print(PAGE.shown())  # noqa: T201 - what it is for
