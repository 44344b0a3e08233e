"""The worked example of the second pattern (J. Wadsworth, Delayed Event Processing, part 2, 2020), cell by cell.

Criteria: ERROR 5 minutes, WARNING 15 minutes, tenant = service. The clock is the test's; the example's runs begin when
it says that they do.
"""

from __future__ import annotations

from taskbridge.declaring.batch import Batch
from taskbridge.gate import Answer
from taskbridge.producer.notify import notify
from tests.second.world import ERROR, MINUTE, PIPELINE, World


def at(clock: str) -> int:
    """Milliseconds from 13:00, where the world begins, to `clock`."""
    hours, minutes = clock.split(":")
    return ((int(hours) - 13) * 60 + int(minutes)) * MINUTE * 1000


def shown(ms: int | None) -> str:
    """A time as the table writes it; every command takes a microsecond, which stays within the minute."""
    if ms is None:
        return ""
    minutes = ms // (MINUTE * 1000)
    return f"{13 + minutes // 60}:{minutes % 60:02}"


def test_the_table(world: World) -> None:
    # 13:00, record 1: WARNING of A. No run before it, so it is due now.
    world.go_to(at("13:00"))
    first = world.record("WARNING", "A")
    assert first.answer is Answer.STARTED
    assert (world.due("A"), world.published()) == (None, 1), "published, so nothing waits"

    # 13:01, the run begins and takes it.      | A | last run 13:01
    world.go_to(at("13:01"))
    world.run_all()
    tenant, start, ids = world.batches.pop()
    assert (tenant, shown(start), ids) == ("A", "13:01", [first.message_id])
    assert (shown(world.last_run("A")), world.waiting("A")) == ("13:01", 0)

    # 13:05, four records.
    world.go_to(at("13:05"))
    second = world.record("ERROR", "A")
    #                                          | 2 | Error   | A | 13:05 | 13:06 |
    assert (second.answer, shown(world.due("A"))) == (Answer.DELAYED, "13:06")
    third = world.record("ERROR", "B")
    #                                          | 3 | Error   | B | 13:05 | 13:05 |
    assert (third.answer, world.due("B")) == (Answer.STARTED, None)
    fourth = world.record("WARNING", "A")
    #                                          | 4 | Warning | A | 13:05 | 13:16 |: its own time, and A's stays 13:06
    assert fourth.delay == 15 * MINUTE
    assert shown((world.last_run("A") or 0) + int(fourth.delay * 1000)) == "13:16"
    assert shown(world.due("A")) == "13:06"
    fifth = world.record("WARNING", "C")
    #                                          | 5 | Warning | C | 13:05 | 13:05 |
    assert (fifth.answer, world.due("C")) == (Answer.STARTED, None)
    assert world.last_run("B") is None
    assert world.last_run("C") is None

    # Just before 13:06: B and C have run at 13:05, A's two records wait.
    world.run_all()
    assert [(tenant, shown(start), ids) for tenant, start, ids in world.batches] == [
        ("B", "13:05", [third.message_id]),
        ("C", "13:05", [fifth.message_id]),
    ]
    world.batches.clear()
    world.go_to(at("13:06") - 1000)
    assert world.fire_due() == []
    assert (shown(world.last_run("A")), shown(world.due("A")), world.waiting("A")) == ("13:01", "13:06", 2)
    assert (shown(world.last_run("B")), world.waiting("B")) == ("13:05", 0)
    assert (shown(world.last_run("C")), world.waiting("C")) == ("13:05", 0)

    # 13:06: A runs, and takes the WARNING that was due at 13:16 along.
    world.go_to(at("13:06"))
    assert world.fire_due() == ["A"]
    world.run_all()
    ((tenant, start, ids),) = world.batches
    assert (tenant, shown(start), ids) == ("A", "13:06", [second.message_id, fourth.message_id])
    #                                          | A 13:06 | B 13:05 | C 13:05 |, and nothing waits
    assert [shown(world.last_run(service)) for service in "ABC"] == ["13:06", "13:05", "13:05"]
    assert [world.waiting(service) for service in "ABC"] == [0, 0, 0]
    world.go_to(at("13:30"))
    assert world.fire_due() == []
    assert world.published() == 0


def test_what_comes_during_a_run_is_due_by_its_smallest_delay_since_that_run(world: World) -> None:
    def meanwhile(_: Batch) -> None:
        if len(world.batches) == 1:
            world.gate.us += 30_000_000
            for level in ("ERROR", "WARNING"):
                world.record(level, "A")

    world.meanwhile = meanwhile
    world.record("WARNING", "A")
    world.run_all()
    ((_, start, _),) = world.batches
    assert world.due("A") == start + ERROR.delay_ms
    world.go_to(start + ERROR.delay_ms)
    world.fire_due()
    world.run_all()
    assert [len(ids) for _, _, ids in world.batches] == [1, 2]
    assert world.due("A") is None


def test_events_without_records_make_a_run_each_tick_at_the_most(world: World) -> None:
    world.record("ERROR", "A")
    world.run_all()
    begun = 0
    for at in range(200):
        world.go_to(1_000 + at * 10)
        notify(world.app, "A", PIPELINE, ERROR.delay_ms if at % 2 else 0)
        world.fire_due()
        while world.run_one():
            begun += 1
    assert begun <= 2_000 / 200 + 1
    assert len(world.batches) == 1


def test_an_empty_run_holds_back_the_next_record_for_a_tick_only(world: World) -> None:
    notify(world.app, "A", PIPELINE, 0)
    world.run_all()
    world.go_to(50)
    assert world.record("WARNING", "A").answer is Answer.DELAYED
    assert world.due("A") == 200
    world.go_to(200)
    world.fire_due()
    world.run_all()
    assert [start for _, start, _ in world.batches] == [200]
