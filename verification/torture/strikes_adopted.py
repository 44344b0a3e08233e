"""What users do to a table that is adopted: they change its columns, and work on while backfills run."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Final

from verification.torture.arena import ADOPTS, command
from verification.torture.scene import Scene, Struck
from verification.torture.schedule import Planned
from verification.torture.users import GOODS, TABLE

__all__ = ["backfilled_beside_users", "columns_change"]

DELIVERS_WITHIN: Final = 3.0
"""Seconds after which a source that does not deliver all its rows is thought to have stopped."""
OUTAGE: Final = 8.0
"""Seconds more that it is given where another fault may hold it up."""
ADOPTS_WITHIN_TRIES: Final = 3
"""A command may meet a server that another fault has struck, or a table that is in use."""
BACK_WITHIN: Final = 60.0
"""Seconds after which nothing more is waited for."""
CHANGES: Final[tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = (
    (("ADD COLUMN size int DEFAULT 1", "DROP COLUMN note"), ("DROP COLUMN size", "ADD COLUMN note text")),
    (
        ("RENAME tenant TO tenant_before", "RENAME owner TO tenant", "RENAME tenant_before TO owner"),
        ("RENAME tenant TO tenant_before", "RENAME owner TO tenant", "RENAME tenant_before TO owner"),
    ),
    (
        ("RENAME id TO id_before", "RENAME code TO id", "RENAME id_before TO code"),
        ("RENAME id TO id_before", "RENAME code TO id", "RENAME id_before TO code"),
    ),
    (("ALTER id TYPE text USING id::text",), ("ALTER id TYPE bigint USING id::bigint",)),
    (("ALTER tenant TYPE varchar(100)",), ("ALTER tenant TYPE text",)),
)
"""Each with what changes it back; all of one are one transaction."""


def columns_change(scene: Scene, planned: Planned) -> Struck:
    """Change columns while users write, and back later.

    Each time the rows are delivered as they are, or the source has stopped, `doctor` tells of it, and adopting the
    table again lets it go on.
    """
    there, back = CHANGES[round(planned.part * 1000) % len(CHANGES)]
    found: list[Struck] = []
    for number, change in enumerate((there, back)):
        with scene.users.working(2, f"{scene.seed}/{planned.part}/{number}", pauses=0.03):
            time.sleep(0.2)
            scene.arena.rows("; ".join(f"ALTER TABLE {TABLE} {one}" for one in change))
            changed = time.monotonic()
            time.sleep(0.3 + planned.part)
        found.append(_goes_on(scene, changed))
    slower = max(found, key=lambda one: (one.took or 0.0) - one.lasted)
    return replace(slower, violations=tuple(violation for one in found for violation in one.violations))


def _goes_on(scene: Scene, changed: float) -> Struck:
    """Wait until the rows are delivered, and adopt the table again if they are not."""
    since = time.monotonic()
    if _settles(scene, DELIVERS_WITHIN):
        return Struck(since, (), took=time.monotonic() - since)
    is_told = TABLE in command("doctor", "--json").out
    if not is_told and _settles(scene, OUTAGE):
        return Struck(since, (), took=time.monotonic() - since, lasted=OUTAGE)
    violations = [] if is_told else [f"stuck: {TABLE} is not delivered, and doctor says nothing of it"]
    if not scene.users.renamed:
        violations += scene.arena.never_deleted(scene.users)
    scene.users.renamed = True
    violations += _adopt_again()
    since = time.monotonic()
    _settles(scene, BACK_WITHIN)
    return Struck(since, (), since - changed, took=time.monotonic() - since, violations=tuple(violations))


def backfilled_beside_users(scene: Scene, planned: Planned) -> Struck:
    """Backfill again and discard unmatched rows while users update them, with pauses in their transactions."""
    violations: list[str] = []
    with scene.users.working(4, f"{scene.seed}/{planned.part}", pauses=0.01, holds=0.03, strange=0.4):
        time.sleep(0.5)
        for _ in range(2):
            violations += _adopt_again()
            listed = command("quarantine", "list", "--unmatched", "--pipeline", GOODS, "--json")
            if listed.status == 0:
                keys = [record["message_id"] for record in json.loads(listed.out)["records"]]
                command("quarantine", "discard", "--unmatched", "--pipeline", GOODS, "--yes", *(keys or ["none"]))
    ended = time.monotonic()
    _settles(scene, BACK_WITHIN)
    return Struck(ended, (), took=time.monotonic() - ended, violations=tuple(violations))


def _settles(scene: Scene, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while scene.arena.count_goods(scene.users.prefix):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def _adopt_again() -> list[str]:
    for _ in range(ADOPTS_WITHIN_TRIES):
        done = command(*ADOPTS, "--again")
        if done.status == 0:
            return []
        if done.status == 2:
            break
    return [f"stuck: the table cannot be adopted again: {done.errors.strip()[-300:]}"]
