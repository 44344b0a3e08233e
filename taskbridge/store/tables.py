"""The tables, as SQLAlchemy knows them. migrations/ makes them; a test holds the two together."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Sequence,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.dialects.postgresql.base import PGDialect
from sqlalchemy.types import UserDefinedType

__all__ = [
    "METADATA",
    "cluster",
    "deliveries",
    "messages",
    "pauses",
    "pipelines",
    "quarantine",
    "records",
    "revisions",
    "sync_cursors",
]


class Xid8(UserDefinedType[str]):
    """PostgreSQL's 64-bit transaction id; it does not wrap around."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name in DDL."""
        return "xid8"


class PgSnapshot(UserDefinedType[str]):
    """PostgreSQL's snapshot value: which transactions were visible."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return the type's name in DDL."""
        return "pg_snapshot"


# So that SQLAlchemy knows the types when it reads a database's tables, as Alembic does to compare them with these.
PGDialect.ischema_names |= {"xid8": Xid8, "pg_snapshot": PgSnapshot}

METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _key(name: str) -> Column[str]:
    """Return a column that is compared byte by byte, so that its order does not depend on the server's locale."""
    return Column(name, Text(collation="C"), nullable=False)


def _counter(name: str) -> Column[int]:
    return Column(name, BigInteger, nullable=False, server_default=text("0"))


def _count(name: str, comment: str) -> Column[int]:
    return Column(name, Integer, nullable=False, server_default=text("0"), comment=comment)


def _revision(comment: str | None = None) -> Column[int]:
    return Column("revision", BigInteger, nullable=False, comment=comment)


def _now(name: str, comment: str | None = None) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=text("now()"), comment=comment)


revisions: Final = Sequence("revisions", metadata=METADATA)
"""Revisions of all records; the trigger of the log draws from it."""

records: Final = Table(
    "records",
    METADATA,
    Column(
        "id",
        BigInteger,
        nullable=False,
        comment="The row's first revision; rows of one transaction are read in this order.",
    ),
    _key("source"),
    Column("tenant", Text(collation="C"), nullable=False, server_default=text("''")),
    _key("key"),
    _revision("Another with each change of the row, and never one again; a trigger sets it."),
    Column("xid", Xid8, nullable=False, comment="The transaction that wrote the row last; a trigger sets it."),
    Column("document", JSONB, comment="Null: the row is in the table that was adopted as the source."),
    Column(
        "deleted",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="The row is gone from the adopted table.",
    ),
    Column(
        "delay_ms",
        BigInteger,
        comment="Least time since the tenant's last run, for pipelines with delays; null: the smallest that "
        "the pipeline "
        "has.",
    ),
    Column("criterion", Text),
    Column("reason", Text),
    _now("recorded_at"),
    _now("changed_at", "When the row was written last; a trigger sets it."),
    Column("discarded_at", DateTime(timezone=True), comment="No criterion matched, and somebody gave the record up."),
    # Every unique constraint contains the tenant, so that the table can be partitioned by it.
    PrimaryKeyConstraint("source", "tenant", "key"),
    CheckConstraint("(tenant = '') = (reason IS NOT NULL)", name="matched"),
    Index("ix_records_source_tenant_xid_id", "source", "tenant", "xid", "id"),
    Index("ix_records_source_xid_id", "source", "xid", "id"),
    Index("ix_records_unmatched", "source", "id", postgresql_where=text("tenant = ''")),
    comment="The log: one row per source, tenant and key. Without a tenant: no criterion matched, and the reason.",
)

messages: Final = Table(
    "messages",
    METADATA,
    _key("source"),
    _key("key"),
    PrimaryKeyConstraint("source", "key"),
    comment=(
        "Ids of the messages that were recorded, so that each is once in its source, whatever tenant criteria give it."
    ),
)

pipelines: Final = Table(
    "pipelines",
    METADATA,
    _key("pipeline"),
    _key("source"),
    Column("start", PgSnapshot, nullable=False, server_default=text("'1:1:'")),
    _now("first_seen_at"),
    PrimaryKeyConstraint("pipeline"),
    comment="The pipelines that were seen: what each reads, and the snapshot at which its tenants' cursors begin.",
)

sync_cursors: Final = Table(
    "sync_cursors",
    METADATA,
    _key("pipeline"),
    _key("tenant"),
    Column("snapshot", PgSnapshot, nullable=False, server_default=text("'1:1:'")),
    Column("target", PgSnapshot),
    Column("at_xid", Xid8),
    Column("at_id", BigInteger),
    Column("owner", Text(collation="C")),
    _counter("sweeps"),
    _counter("runs"),
    _counter("events"),
    _counter("records"),
    _counter("burst_runs"),
    _counter("burst_events"),
    Column("first_event_ms", Integer),
    Column("last_run_at", DateTime(timezone=True)),
    Column("failures", Integer, nullable=False, server_default=text("0")),
    Column("last_error", Text),
    Column("failed_at", DateTime(timezone=True)),
    Column(
        "last_taken_at",
        DateTime(timezone=True),
        comment="Start of the last run that took records; last_run_at is that of the last run.",
    ),
    Column("batch_limit", Integer, comment="Most records of the next batch; null: the pipeline's batch size."),
    _count("suspects", "Of so many next records one cannot be handled; 0: none is known."),
    _count("attempts", "How often in a row a batch of the present size failed."),
    Column("failing_since", DateTime(timezone=True), comment="First failure of a batch that held the suspects."),
    Column("succeeded_at", DateTime(timezone=True), comment="Last time that the handler took records."),
    _counter("bursts"),
    _counter("failed_runs"),
    _counter("first_event_ms_sum"),
    Column(
        "first_event_counts",
        ARRAY(Integer),
        nullable=False,
        server_default=text("'{}'"),
        comment="How many bursts had their first event handed over in each bucket; see taskbridge/histogram.py.",
    ),
    _count("deaths", "How often, beside the attempts, a run died that had the suspect alone."),
    Column("suspect_revision", BigInteger, comment="The one suspect that attempts and deaths are counted of."),
    _count("outages", 'How many of the attempts with the suspect alone said "downstream".'),
    Column("looked", PgSnapshot, comment="What was visible when the last run claimed the cursor: that run reads it."),
    PrimaryKeyConstraint("pipeline", "tenant"),
    Index("ix_sync_cursors_failing", "pipeline", postgresql_where=text("failures > 0")),
    # A cursor is updated at every run; room in its page keeps those updates out of the index.
    postgresql_with={"fillfactor": "50"},
    comment="How far each tenant's records have been handled: all that is visible in snapshot, and of those visible in "
    "target the ones up to (at_xid, at_id).",
)

tails: Final = Table(
    "tails",
    METADATA,
    _key("pipeline"),
    _key("kind"),
    Column("snapshot", PgSnapshot, nullable=False),
    PrimaryKeyConstraint("pipeline", "kind"),
    CheckConstraint("kind IN ('tail', 'base')", name="kind"),
    # It is updated a few times a second at the most, mostly in the page that it is in.
    postgresql_with={"fillfactor": "50"},
    comment="How far all records of a pipeline have been looked at. Of what the snapshot of the tail sees, every "
    "tenant was reminded, or had a run that looked. What that of the base sees, every cursor has handled.",
)

quarantine: Final = Table(
    "quarantine",
    METADATA,
    _key("pipeline"),
    _key("tenant"),
    _key("external_id"),
    _revision("The record as it was; once it changes in the source, this row means nothing."),
    Column("reason", Text, nullable=False),
    Column("attempts", Integer, nullable=False, server_default=text("1")),
    _now("quarantined_at"),
    Column("cause", Text, nullable=False, server_default=text("'failed'")),
    Column("failing_since", DateTime(timezone=True)),
    Column(
        "retry_at",
        DateTime(timezone=True),
        comment="Somebody asked for another try; the tenant's next sweep takes it.",
    ),
    Column("discarded_at", DateTime(timezone=True)),
    PrimaryKeyConstraint("pipeline", "tenant", "external_id"),
    CheckConstraint("cause IN ('failed', 'rejected')", name="cause"),
    Index("ix_quarantine_retry", "pipeline", "tenant", postgresql_where=text("retry_at IS NOT NULL")),
    comment="Records that cannot be handled, set aside so that the rest go on.",
)

pauses: Final = Table(
    "pauses",
    METADATA,
    _key("pipeline"),
    Column("tenant", Text(collation="C"), nullable=False, server_default=text("''")),
    Column("reason", Text),
    _now("paused_at"),
    PrimaryKeyConstraint("pipeline", "tenant"),
    comment="Tenants that an operator holds; with an empty tenant, the whole pipeline.",
)

cluster: Final = Table(
    "taskbridge_cluster",
    METADATA,
    Column("system_identifier", BigInteger, nullable=False),
    comment="The cluster whose transaction ids the records and cursors hold.",
)

deliveries: Final = Table(
    "deliveries",
    METADATA,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    _key("pipeline"),
    _key("tenant"),
    _key("external_id"),
    _revision(),
    _now("delivered_at"),
    _key("token"),
    # Not unique on purpose: the journal must be able to show that a record was delivered twice.
    Index(None, "pipeline", "tenant", "external_id"),
    comment="The journal: one row per record that it took.",
)
