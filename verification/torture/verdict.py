"""What a schedule came to: everything that must hold once its faults are over."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

from taskbridge import app
from taskbridge.process.runtime import runtime_of
from verification.torture.arena import NOT_AS_DELIVERED, Arena
from verification.torture.faults import LEAST_DEATHS, tries
from verification.torture.kinds import PIPELINES
from verification.torture.producer import Expected, Fact, Truth
from verification.torture.users import GOODS, Users

__all__ = ["Stock", "judge", "judge_goods", "leftovers"]

LARGEST_BATCH: Final = 50
TRIES_PER_FAULT: Final = 4
"""How often a record is tried once more because of another fault: a run that it ends, a probe of the circuit.

So often is a parcel delivered once more, too.
"""


@dataclass
class Stock:
    """One look into Postgres, for the tenants of one schedule; keys are (tenant, number)."""

    invoices: dict[tuple[str, str], tuple[int, int]]
    """Revision and version."""
    deliveries: dict[tuple[str, str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    """The tokens that delivered each revision."""
    quarantine: set[tuple[str, str, int]] = field(default_factory=set)


def _take_stock(arena: Arena, prefix: str) -> Stock:
    """Look once."""
    arena.copy_parcels()
    tenants = {"tenants": f"{prefix}%"}
    stock = Stock(
        {
            (tenant, number): (revision, int(version))
            for tenant, number, revision, version in arena.rows(
                "SELECT tenant, key, revision, document->>'version' FROM taskbridge.records WHERE tenant "
                "LIKE %(tenants)s",
                **tenants,
            )
        }
    )
    for tenant, number, revision, token in arena.rows(
        "SELECT tenant, external_id, revision, token FROM taskbridge.deliveries WHERE tenant LIKE %(tenants)s",
        **tenants,
    ):
        stock.deliveries[tenant, number, revision].append(token)
    stock.quarantine = {
        tuple(row)
        for row in arena.rows(
            "SELECT tenant, external_id, revision FROM taskbridge.quarantine WHERE tenant LIKE %(tenants)s", **tenants
        )
    }
    return stock


def judge(arena: Arena, prefix: str, truth: Truth, faults: int) -> list[str]:
    """Return what is wrong with the records, one sentence each that begins with its kind.

    `faults`: how many struck; what a record is tried for because of them is no fault of its own.
    """
    stock = _take_stock(arena, prefix)
    arena.ledger.read()
    facts = truth.facts()
    wrong = [
        f"lost: {key} was committed and is not in the table"
        for key in facts.keys() - stock.invoices.keys()
        if facts[key].committed is not None
    ]
    for key, (revision, version) in stock.invoices.items():
        wrong += _of_record(stock, key, revision, version, facts.get(key, Fact()))
    for (tenant, number, revision), tokens in stock.deliveries.items():
        if len(tokens) > 1:
            wrong.append(f"doubled: {tenant} {number} revision {revision} was delivered by {' and '.join(tokens)}")
    most = 1 + faults * TRIES_PER_FAULT
    wrong += [
        f"doubled: {tenant} {number} revision {revision} was delivered {count} times, bound {most}"
        for (tenant, number, revision), count in arena.ledger.parcel_ends.items()
        if tenant.startswith(prefix) and count > most
    ]
    wrong += [
        f"double advance: {tenant} from position {position} by {' and '.join(tokens)}"
        for tenant, position, tokens in arena.rows(
            "SELECT tenant, position, array_agg(token) FROM torture_advances WHERE tenant LIKE %(tenants)s "
            "GROUP BY tenant, position HAVING count(*) > 1",
            tenants=f"{prefix}%",
        )
    ]
    most = tries(LARGEST_BATCH, LEAST_DEATHS) + faults * TRIES_PER_FAULT
    wrong += [
        f"too many tries: {tenant} {number} revision {revision} was tried {count} times, bound {most}"
        for (tenant, number, revision), count in arena.ledger.tries.items()
        if tenant.startswith(prefix) and count > most
    ]
    wrong += [
        f"rolled back: {tenant} version {version} was never committed, and a handler got it"
        for tenant, versions in arena.ledger.versions.items()
        if tenant.startswith(prefix)
        for version in versions - truth.versions
    ]
    leaked = Counter(found for found in arena.ledger.leaked if found[0].startswith(prefix))
    wrong += [f"leak: {tenant} found {what}, {count} times" for (tenant, what), count in leaked.items()]
    return wrong + [f"mixed: {text}" for text in arena.ledger.mixed]


def judge_goods(arena: Arena, users: Users) -> list[str]:
    """Return what is wrong with the deliveries of the users' rows."""
    tenants = {"tenants": f"{users.prefix}%"}
    return [
        *(f"lost: row {tuple(row)} of the adopted table" for row in arena.rows(NOT_AS_DELIVERED, **tenants)),
        *(
            f"doubled: row {key} of {tenant}, revision {revision}"
            for tenant, key, revision in arena.rows(
                "SELECT tenant, key, revision FROM torture_goods_seen WHERE tenant LIKE %(tenants)s "
                "GROUP BY tenant, key, revision HAVING count(*) > 1",
                **tenants,
            )
        ),
        *([] if users.renamed else arena.never_deleted(users)),
        *(
            f"wrong end: row {key} of {tenant} is in quarantine: {reason}"
            for tenant, key, reason in arena.rows(
                "SELECT tenant, external_id, reason FROM taskbridge.quarantine WHERE tenant LIKE %(tenants)s", **tenants
            )
        ),
    ]


def _of_record(stock: Stock, key: tuple[str, str], revision: int, version: int, fact: Fact) -> list[str]:
    possible = [*([fact.committed] if fact.committed else []), *fact.in_doubt]
    found = [one for one in possible if one.version == version]
    if not found:
        return [f"lost: {key} holds version {version}, committed was {[one.version for one in possible]}"]
    ends = {
        Expected.DELIVERED: (*key, revision) in stock.deliveries,
        Expected.QUARANTINED: (*key, revision) in stock.quarantine,
    }
    expected = found[0].expected
    if expected is Expected.EITHER:
        return [] if any(ends.values()) else [f"lost: {key} revision {revision} is not {expected}"]
    wrong = [] if ends[expected] else [f"lost: {key} revision {revision} is not {expected}"]
    others = [other for other, is_there in ends.items() if other is not expected and is_there]
    return wrong + [f"wrong end: {key} revision {revision} is {other}, not {expected}" for other in others]


def leftovers(arena: Arena) -> list[str]:
    """Return what is left in Redis that a quiet deployment does not have: runners, and keys that never expire."""
    client: Any = arena.redis.client
    ours = [key for key in client.scan_iter() if not key.startswith(("_kombu.", "unacked"))]
    return [
        *(f"runner {tenant}" for pipeline in (*PIPELINES, GOODS) for tenant in runtime_of(app).gate.active(pipeline)),
        *(f"key {key}" for key in ours if client.ttl(key) == -1),
    ]
