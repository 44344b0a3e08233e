"""Guards of the protocol that can be taken out of a worker, to see that torture notices.

It does not notice `begin-token` alone: a run that begins with an old token is refused by the cursor, and replaced.
"""

from __future__ import annotations

from typing import Any

from taskbridge.gate import gate
from taskbridge.store import cursor, queries
from taskbridge.worker import poller

__all__ = ["GUARDS", "take_out"]

# Per guard: the text that is patched (`.sql` or `.lua`; EVERY: all scripts), what stands there, and what replaces it.
EVERY = "every script"
TEXTS = {
    "owner": ("advance", "AND c.owner = m.token AND c.sweeps = m.sweeps", ""),
    "counter": ("settle", "if events > swept then", "if false then"),
    "end": ("expire", "and events == swept and", "and"),
    "begin-token": ("begin", 'if state ~= "queued" or current ~= token then', 'if state ~= "queued" then'),
    "end-replaced": ("end_replaced", "WHERE application_name LIKE", "WHERE false AND application_name LIKE"),
    "clock": (EVERY, "behind_us = math.max(0, (clock[2] or 0) - us)", "behind_us = 0"),
}
# Per guard: the page that is never read, what it answers instead, and who reads it.
PAGES = {
    "poller": ("poll_page", (False, None), poller.Poller._poll),
    "reconciler": ("reconcile_page", ([], None), poller.Poller._reconcile),
}
LOCK_TIMEOUT = "lock-timeout"
"""Runs that begin together claim their cursors, and wait for no lock."""
GUARDS = (*TEXTS, *PAGES, LOCK_TIMEOUT)


def take_out(guard: str) -> None:
    """Work without `guard` in this process. Call it before a gate or cursors are made."""
    if guard in PAGES:
        page, answer, reader = PAGES[guard]
        assert page in reader.__code__.co_names, f"{reader.__name__} no longer calls {page}"
        vars(poller)[page] = lambda *_, **__: answer
        return
    if guard == LOCK_TIMEOUT:
        assert "SHORT_WAIT" in cursor.Cursors._claim_at_once.__code__.co_names, "claims no longer have a lock_timeout"
        vars(cursor)["SHORT_WAIT"] = "0"
        return
    name, present, instead = TEXTS[guard]

    def patched(text: str) -> str:
        assert present in text, f"{name} no longer holds {present!r}"
        return text.replace(present, instead)

    query, render = vars(queries)["query"], vars(gate)["render"]

    def patched_query(asked: str, *schema: Any, **more: Any) -> str:
        text: str = query(asked, *schema, **more)
        return patched(text) if asked == name else text

    def patched_render(script: Any, publish: str) -> str:
        text: str = render(script, publish)
        return patched(text) if name in (script.name, EVERY) else text

    vars(queries)["query"] = patched_query
    vars(gate)["render"] = patched_render
