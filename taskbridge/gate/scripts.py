"""The Lua scripts: which there are, what they take, and the text that Redis is given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files

from taskbridge.gate.constants import Constant
from taskbridge.gate.state import Answer

__all__ = ["SCRIPTS", "Script", "render"]


@dataclass(frozen=True, slots=True)
class Script:
    """One verb. The header of `{name}.lua` has `keys` and `args` in the same order; a test compares them.

    After its keys every script gets the key of the gate's clock. `uses` names files whose functions it calls. A script
    for many tenants gets `keys_of_each` and `args_of_each` for each of them, after the others.
    """

    name: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    uses: tuple[str, ...] = ()
    keys_of_each: tuple[str, ...] = ()
    args_of_each: tuple[str, ...] = ()


SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (
        Script(
            "notify",
            ("due", "queue", "turns", "shares"),
            ("pipeline", "republish_ms", "traceparent", "nonce", "now_ms"),
            uses=("queueing", "last", "expiry"),
            keys_of_each=("runner", "lease", "last"),
            args_of_each=("tenant", "delay_ms", "lease_ms"),
        ),
        Script(
            "remind",
            ("due", "queue", "turns", "shares", "reminded"),
            ("pipeline", "republish_ms", "most_reminded", "by_base", "keeps_last", "nonce", "now_ms"),
            uses=("queueing", "last", "turns", "unbegun"),
            keys_of_each=("runner", "last"),
            args_of_each=("tenant", "delay_ms", "last_ms"),
        ),
        Script(
            "begin",
            ("due", "runner", "lease", "circuit", "running", "wait_queue", "turns", "handed", "reminded", "sent"),
            ("pipeline", "tenant", "token", "ttl_ms", "republish_ms", "most_runs", "worker", "nonce", "now_ms"),
            uses=("wait_queue",),
        ),
        Script(
            "decline",
            ("due", "runner", "handed", "reminded", "sent"),
            ("pipeline", "tenant", "token", "republish_ms", "now_ms"),
        ),
        Script("beat", ("due", "runner", "running"), ("tenant", "token", "ttl_ms", "now_ms")),
        Script(
            "settle",
            ("due", "runner", "last", "queue", "circuit", "running", "wait_queue", "turns", "shares", "handed"),
            (
                "pipeline",
                "tenant",
                "token",
                "outcome",
                "took",
                "handled",
                "failed",
                "blame",
                "retry_ms",
                "owner",
                "all_wait",
                "counted",
                "empty_tick_ms",
                "last_ttl_ms",
                "republish_ms",
                "most_handed",
                "most_runs",
                "nonce",
                "now_ms",
            ),
            uses=("queueing", "expiry", "turns", "unbegun", "wait_queue", "circuit"),
        ),
        Script(
            "permit",
            ("runner", "pipeline_rate", "tenant_rate", "pipeline_calls", "tenant_calls"),
            (
                "token",
                "wanted",
                "at_least",
                "pipeline_us",
                "pipeline_burst",
                "tenant_us",
                "tenant_burst",
                "pipeline_call_us",
                "pipeline_call_burst",
                "tenant_call_us",
                "tenant_call_burst",
                "now_ms",
            ),
        ),
        Script(
            "expire",
            ("due", "runner", "queue", "first", "counts", "turns", "handed", "reminded", "sent"),
            ("pipeline", "tenant", "republish_ms", "why", "nonce", "now_ms"),
            uses=("queueing", "unbegun"),
        ),
        Script("peek", ("due",), ("limit", "now_ms")),
        Script(
            "tick",
            ("due", "sent", "ticking", "turns"),
            ("limit", "most_queued", "ticker", "hold_ms", "now_ms"),
            uses=("timekeeping", "unbegun"),
        ),
        Script("turn", ("turns", "handed"), ("limit", "now_ms"), uses=("unbegun",)),
        Script("take", ("first", "next", "turns", "taken"), ("most_first", "most_next", "run_task", "nonce")),
        Script("probe", ("queue",), ("pipeline", "tenant", "token", "now_ms")),
        Script("own", ("owner",), ("database", "label", "began_ms", "is_idle", "now_ms")),
        Script("hold_tail", ("tailing",), ("worker", "hold_ms", "had_until", "now_ms")),
        Script("remember", ("last",), ("last_ms", "last_ttl_ms", "now_ms"), uses=("expiry",)),
    )
}


def read(file_name: str) -> str:
    """Return the text of a `.lua` file of this package."""
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")


def render(script: Script, publish: str) -> str:
    """Return what Redis is given for `script`: the numbers used, the prelude, how to publish, its parts, itself.

    Redis runs the whole text at every call, definitions and all, so a script has no more of them than it uses.
    """
    parts = [read(f"{name}.lua") for name in ("prelude", *script.uses, script.name)]
    if "queue" in script.keys:
        parts.insert(1, publish)
    used = set(re.findall(r"[A-Z_]+", "".join(parts)))
    numbers = [one for one in (*Answer, *Constant) if one.name in used]
    names = "".join(f"local {one.name} = {int(one)}\n" for one in numbers)
    return "\n".join((names, *parts))
