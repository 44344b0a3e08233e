"""A server takes over whose clock is behind: what waits waits no longer than it would have."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Limits, RateLimit, Spacing
from taskbridge.gate import Answer, Begun, Blame, Gate, Keys
from tests.gate.crowd import PIPELINE, Crowd

HOUR_MS = 3_600_000
TICK = Spacing(delay=200, lease=1_200)


def look(crowd: Crowd) -> list[str]:
    """Let a ticker look; it has nobody to compete with."""
    crowd.client.delete(crowd.keys.ticking(PIPELINE))
    return crowd.gate.tick(PIPELINE, 10).tenants


def fail_over(crowd: Crowd, back_ms: int = HOUR_MS) -> None:
    """Let a server take over whose clock is behind, after a ticker has looked at the old one."""
    look(crowd)
    crowd.passes(-back_ms)


def waits_for_its_tick(crowd: Crowd) -> int:
    crowd.notify("a", spacing=TICK)
    crowd.begin("a")
    crowd.notify("a", spacing=TICK)
    assert crowd.settle("a", spacing=TICK) is Answer.LINGERING
    return 200


def waits_for_its_back_off(crowd: Crowd) -> int:
    crowd.start("a")
    crowd.fail("a", blame=Blame.NOBODY, retry_ms=3_000)
    return 3_000


def runs_and_dies(crowd: Crowd) -> int:
    crowd.start("a")
    return 5_000


def is_queued_and_lost(crowd: Crowd) -> int:
    crowd.notify("a")
    return 4_000


@pytest.mark.parametrize("situation", [waits_for_its_tick, waits_for_its_back_off, runs_and_dies, is_queued_and_lost])
@pytest.mark.parametrize("back_ms", [1_000, HOUR_MS])
def test_a_deadline_that_passes_an_hour_late(crowd: Crowd, situation: Callable[[Crowd], int], back_ms: int) -> None:
    wait_ms = situation(crowd)
    fail_over(crowd, back_ms)

    assert look(crowd) == []
    crowd.passes(wait_ms - 5)
    assert look(crowd) == []
    crowd.passes(10)
    assert look(crowd) == ["a"]
    assert crowd.expire("a")[0] is not Answer.NOT_DUE


def test_circuits_and_rate_limits_hold_no_longer_and_time_and_tokens_go_on(crowd: Crowd) -> None:
    limit = Limits(RateLimit("1/s"))
    crowd.start("a", "b", "failing")
    assert crowd.gate.permit(RunKey(PIPELINE, "a", crowd.tokens["a"]), 1, 1, limit, Limits()) == (1, 0)
    crowd.fail("failing", blame=Blame.PIPELINE)
    crowd.settle("a")
    began, token = crowd.status("b").began_ms, crowd.tokens["a"]
    fail_over(crowd)

    # The first command after the failover sees no earlier time either.
    crowd.notify("a")
    assert crowd.tokens["a"] > token
    look(crowd)
    permitted, wait_ms = crowd.gate.permit(RunKey(PIPELINE, "b", crowd.tokens["b"]), 1, 1, limit, Limits())
    assert permitted == 0
    assert wait_ms <= 1_000
    crowd.passes(1_005)
    assert isinstance(crowd.begin("a"), Begun), "it may probe"
    assert (crowd.status("a").began_ms or 0) >= (began or 0) > 0


def test_a_ticker_that_died_keeps_nobody_out_for_an_hour(crowd: Crowd) -> None:
    crowd.notify("a")
    crowd.passes(4_005)
    assert crowd.gate.tick(PIPELINE, 10).tenants == ["a"]
    crowd.passes(-HOUR_MS)
    crowd.gate._ticker = "another"
    # The key itself would live on for as long as the server's clock is behind.
    crowd.client.persist(crowd.keys.ticking(PIPELINE))

    crowd.gate.tick(PIPELINE, 10)
    crowd.passes(100)

    assert crowd.gate.tick(PIPELINE, 10).tenants == ["a"]


def test_a_tail_that_nobody_reads_for_an_hour(crowd: Crowd) -> None:
    assert crowd.gate.hold_polling(PIPELINE, 700)[:2] == (0, True)
    crowd.client.set(crowd.keys.tailing(PIPELINE), "another " + str(crowd.gate.us // 1000 + 700))
    assert crowd.gate.hold_polling(PIPELINE, 700).wait_ms > 0
    fail_over(crowd)
    look(crowd)
    crowd.client.persist(crowd.keys.tailing(PIPELINE))

    crowd.passes(705)

    assert crowd.gate.hold_polling(PIPELINE, 700).wait_ms == 0


def test_the_gates_own_clock_is_what_commands_are_told(redis_client: redis.Redis, keys: Keys) -> None:
    gate = Gate(redis_client, keys, publish=lambda *_: None)
    behind_ms = 7 * HOUR_MS
    server_ms = gate.now_ms()
    redis_client.hset(keys.clock, "mark", str((server_ms + behind_ms) * 1000))
    assert gate.now_ms() >= server_ms + behind_ms

    gate.tick(PIPELINE, 10)
    gate.notify(PIPELINE, "a", TICK)

    assert gate.now_ms() >= server_ms + behind_ms
    lease_ends_ms = gate.look(PIPELINE, ["a"])[0].lease_ends_ms
    assert lease_ends_ms is not None
    assert abs(lease_ends_ms - gate.now_ms()) < 60_000
