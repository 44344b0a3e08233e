"""The errors that callers may catch.

TaskBridgeError
├── UsageError             the caller passed something that can never work
│   ├── InvalidName        a tenant, pipeline or key prefix that could not be told from another
│   ├── InvalidPolicy      a policy or pipeline declared with values that contradict each other
│   ├── UnknownPipeline    no module that was loaded declares it
│   └── InvalidInput       a file or document that cannot be read
├── ConfigurationError     a setting, or a handler module that does not import
├── HandlerMistake         a handler did what none may do
├── Unavailable            Postgres, Redis or the broker cannot be used now
│   ├── AlreadyRunning     another process serves this data directory
│   └── ForeignCluster     the database was restored into another cluster and not rebased yet
└── SchemaMismatch         the database is at a schema that this version does not know

Every message says what is wrong and what to do next; it names the tenant or the record where there is one, and
never a password. Errors of psycopg, SQLAlchemy and redis-py are translated where people and producers call
(`Unavailable`). A run lets them pass: it is tried again.
"""

from __future__ import annotations

__all__ = [
    "AlreadyRunning",
    "ConfigurationError",
    "ForeignCluster",
    "HandlerMistake",
    "InvalidInput",
    "InvalidName",
    "InvalidPolicy",
    "SchemaMismatch",
    "TaskBridgeError",
    "Unavailable",
    "UnknownPipeline",
    "UsageError",
]


class TaskBridgeError(Exception):
    """Base of every error here. `exit_status` is what the command line ends with."""

    exit_status = 1


class UsageError(TaskBridgeError):
    """The caller passed something that can never work."""

    exit_status = 2


class InvalidName(UsageError):
    """A tenant, pipeline or key prefix that could not be told from another."""


class InvalidPolicy(UsageError):
    """A policy or pipeline whose values are out of range or contradict each other."""


class UnknownPipeline(UsageError):
    """No module that was loaded declares this pipeline."""


class InvalidInput(UsageError):
    """A file or a document that cannot be read."""


class ConfigurationError(TaskBridgeError):
    """A setting that is missing or wrong, or a handler module that does not import."""


class HandlerMistake(TaskBridgeError):
    """A handler did what none may do: end the program, or the transaction of its batch, which counts as failed."""


class Unavailable(TaskBridgeError):
    """Postgres, Redis or the broker cannot be used now: down, refused, or too old."""


class AlreadyRunning(Unavailable):
    """Another process serves this data directory."""


class ForeignCluster(Unavailable):
    """The database was restored into another cluster, where its transaction ids mean nothing, and not rebased yet."""


class SchemaMismatch(TaskBridgeError):
    """The database is at a schema that this version of TaskBridge does not know."""
