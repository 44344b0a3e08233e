"""No path costs more, or less, than its table says: a regression shows without a clock."""

from __future__ import annotations

import pytest

from taskbridge.worker import group
from tests.costs import table
from tests.costs.meter import Meter, metered
from tests.costs.paths import BATCH_SIZE, LONG, PATHS, Path, do_nothing
from tests.costs.table import COSTS, Cost
from tests.deployment import Deployment

# No heartbeat beats and no time budget ends while a run is counted.
UNHURRIED = {"runner_ttl": 3600.0, "republish_after": 3600.0, "run_budget": 3600.0}
# psycopg prepares a statement that a connection has executed five times.
WARM_UP = 6


@pytest.mark.parametrize("deployment", [UNHURRIED], indirect=True)
def test_each_path_costs_what_the_table_says(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "ADVANCED_WITHIN", 3600.0)
    found: dict[str, Cost] = {}
    traces: list[str] = []
    with metered(deployment) as meter:
        for name, path in PATHS.items():
            found[name] = _cost(meter, path, f"tenant-{len(found)}")
            if found[name] != COSTS.get(name):
                traces.append(f"{name}: {COSTS.get(name)} became {found[name]}\n    {meter.trace}")
    if found != COSTS:
        lines = [f'    "{name}": Cost{tuple(cost)},' for name, cost in found.items()]
        pytest.fail("\n".join([*traces, "The table as it would be now:", *lines]), pytrace=False)


def test_the_page_shows_the_table() -> None:
    assert table.PART.shown() == table.markdown(), "run `make docs`"


def _cost(meter: Meter, path: Path, tenant: str) -> Cost:
    """Return what the path costs a process that has gone it before."""
    for turn in range(WARM_UP):
        _prepare(meter)
        path(meter, f"{tenant}-{turn}")()
    _prepare(meter)
    return meter.count(path(meter, tenant))


def _prepare(meter: Meter) -> None:
    meter.redis.flushdb()
    meter.inline.handle(do_nothing, BATCH_SIZE, LONG)
