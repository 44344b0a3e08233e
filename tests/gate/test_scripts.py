"""A script makes no key itself, costs one command whatever it is called with, and takes names of any kind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
import redis
from hypothesis import assume, given
from hypothesis import strategies as st

import taskbridge.gate
from taskbridge.common.run_key import RunKey
from taskbridge.declaring.policy import Limits, Spacing
from taskbridge.gate import Answer, Begun, Blame, Gate, Keys, Outcome, Reminder, Settlement
from taskbridge.gate.scripts import SCRIPTS, read
from tests.costs.meter import Counting, counting
from tests.gate.crowd import Crowd
from tests.runs import begin, settle

SPACING = Spacing(delay=200, lease=1_200)
LASTING = Spacing(delay=60_000, last_ttl=60_000)
OWNER = "9999999999999999-ffffffffffff"


LUA_FILES = {file.name for file in files(taskbridge.gate).iterdir() if file.name.endswith(".lua")}


@pytest.mark.parametrize("file_name", sorted(LUA_FILES))
def test_a_key_that_a_script_makes_itself(file_name: str) -> None:
    code = re.sub(r"--[^\n]*", "", read(file_name))

    commands = re.findall(r'redis\.call\("(\w+)"(?:, ([^,)]+))?', code)
    keyed = [key for command, key in commands if command != "TIME"]

    assert len(commands) == len(re.findall(r"\bredis\.p?call\b", code)), "every call is read by this test"
    assert all(re.fullmatch(r"\w+_key", key) for key in keyed), keyed
    assert not re.search(r"_key\s*\.\.|\.\.\s*\w+_key", code)
    assert not re.search(r"_key\s*=(?!\s*KEYS\[)", code), "a key comes from KEYS or as a parameter"


# One command each (I5)


def _runs(crowd: Crowd, tenant: str, spacing: Spacing = SPACING) -> None:
    crowd.notify(tenant, spacing=spacing)
    assert isinstance(crowd.begin(tenant), Begun)


def _lingers(crowd: Crowd) -> None:
    _runs(crowd, "acme")
    assert crowd.settle("acme", Outcome.DONE, SPACING) is Answer.LINGERING


def _runs_while_another_is_in_the_wait_queue(crowd: Crowd) -> None:
    crowd.most_runs = 1
    _runs(crowd, "acme")
    crowd.put_in_queue("other")


SITUATIONS: dict[str, Callable[[Crowd], None]] = {
    "idle": lambda _: None,
    "queued": lambda crowd: crowd.notify("acme"),
    "running": lambda crowd: _runs(crowd, "acme"),
    "lingering": _lingers,
    "another waits": _runs_while_another_is_in_the_wait_queue,
}

CALLS: dict[str, Callable[[Gate, str], object]] = (
    {
        "notify": lambda gate, _: gate.notify("invoices", "acme", SPACING),
        "notify with a delay since the last run": lambda gate, _: gate.notify("invoices", "acme", LASTING),
        "begin": lambda gate, token: begin(gate, RunKey("invoices", "acme", token)),
        "begin under a cap": lambda gate, token: begin(gate, RunKey("invoices", "acme", token), most_runs=1),
        "permit": lambda gate, token: gate.permit(
            RunKey("invoices", "acme", token), 3, 1, *(Limits.of("", (f"1/{at}", f"1 calls/{at}")) for at in "sm")
        ),
        "decline": lambda gate, token: gate.decline([RunKey("invoices", "acme", token)]),
        "beat": lambda gate, token: gate.beat(RunKey("invoices", "acme", token)),
        "tick": lambda gate, _: gate.tick("invoices", 10),
        "remind": lambda gate, _: gate.remind("invoices", [Reminder("acme", 0)]),
        "hold_polling": lambda gate, _: gate.hold_polling("invoices", 700),
    }
    | {
        f"settle: {outcome}": lambda gate, token, outcome=outcome: settle(
            gate, RunKey("invoices", "acme", token), Settlement(outcome, owner=OWNER), SPACING
        )
        for outcome in Outcome
    }
    | {
        f"settle: retry, blaming {blame}": lambda gate, token, blame=blame: settle(
            gate, RunKey("invoices", "acme", token), Settlement(Outcome.RETRY, blame=blame), SPACING
        )
        for blame in Blame
    }
)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_second_round_trip_in_the_way_of_a_producer_or_a_run(crowd: Crowd, situation: str) -> None:
    for name in SCRIPTS:
        crowd.client.script_load(crowd.gate._scripts[name].script)
    counting(crowd.client.connection_pool)
    crowd.client.ping()
    for call, make in CALLS.items():
        crowd.tokens.clear()
        SITUATIONS[situation](crowd)
        token = crowd.tokens.get("acme", OWNER)
        Counting.round_trips = 0

        make(crowd.gate, token)

        calls_another = call.startswith("settle") and situation == "another waits"
        assert Counting.round_trips == (2 if calls_another else 1), call
        for key in crowd.client.scan_iter(f"{crowd.keys.prefix}:*"):
            crowd.client.delete(key)


def test_a_redis_that_has_forgotten_the_scripts(crowd: Crowd) -> None:
    for make in CALLS.values():
        _runs(crowd, "acme")
        crowd.client.script_flush()
        make(crowd.gate, crowd.tokens["acme"])
        for key in crowd.client.scan_iter(f"{crowd.keys.prefix}:*"):
            crowd.client.delete(key)


def test_an_answer_or_an_outcome_that_this_version_does_not_know_is_not_taken_for_another(crowd: Crowd) -> None:
    _runs(crowd, "acme")
    before = crowd.status("acme")
    unknown: Any = "newer"
    with pytest.raises(redis.ResponseError, match="unknown outcome newer"):
        crowd.settle("acme", unknown)
    assert crowd.status("acme") == before
    for name, script in SCRIPTS.items():
        reply = "{99, false}" if script.args_of_each else "{99}"
        crowd.gate._scripts[name] = crowd.client.register_script(f"return {reply}")
    for call in ("notify", "begin", "beat", "decline", "settle: done"):
        with pytest.raises(ValueError, match="99 is not a valid Answer"):
            CALLS[call](crowd.gate, OWNER)


# A queue is the broker's, and its name has no colon; a probe and the last messages that were taken have no tenant.
MADE = [
    name for name, made in vars(Keys).items() if inspect.isfunction(made) and name not in ("queue", "probe", "taken")
]


def made_for(pipeline: str, *tenant: str) -> set[str]:
    """Return all keys of a pipeline or, with one, of a tenant."""
    makers = [getattr(Keys(), name) for name in MADE if name[0] != "_"]
    wanted = ["pipeline", *["tenant" for _ in tenant]]
    found = [make for make in makers if [*inspect.signature(make).parameters] == wanted]
    assert len(found) >= 5
    keys = {make(pipeline, *tenant) for make in found}
    assert len(keys) == len(found)
    return keys


pipeline_names = st.text("ab-_", min_size=0, max_size=4).map("a{}".format)
tenant_names = st.text(":-_{}%b ", min_size=0, max_size=4).map("b{}b".format)


@given(one=st.tuples(pipeline_names, tenant_names), other=st.tuples(pipeline_names, tenant_names))
def test_two_tenants_that_share_a_key(one: tuple[str, str], other: tuple[str, str]) -> None:
    assume(one != other)

    shared, others_shared = made_for(one[0]), made_for(other[0])
    own, others_own = made_for(*one), made_for(*other)

    assert shared == others_shared if one[0] == other[0] else not shared & others_shared
    assert not own & others_own
    assert not (own | others_own) & (shared | others_shared)
