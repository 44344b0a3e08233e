"""The errors that callers may catch.

TaskBridgeError
├── UsageError
│   ├── InvalidName
│   ├── InvalidPolicy
│   ├── UnknownPipeline
│   ├── InvalidInput
│   └── InvalidConnection
├── ConfigurationError
│   ├── ForeignGate
│   └── MissingExtra
├── HandlerMistake
├── RunFailed
├── Unavailable
│   ├── AlreadyRunning
│   └── ForeignCluster
└── SchemaMismatch

Every message says what is wrong and what to do next. It names the tenant or the record where there is one, and
never a password. Errors of the servers' and the broker's libraries become `Unavailable` where people and producers
call. A run does not translate them: it fails and is tried again.
"""

from __future__ import annotations

__all__ = [
    "AlreadyRunning",
    "ConfigurationError",
    "ForeignCluster",
    "ForeignGate",
    "HandlerMistake",
    "InvalidConnection",
    "InvalidInput",
    "InvalidName",
    "InvalidPolicy",
    "MissingExtra",
    "RunFailed",
    "SchemaMismatch",
    "TaskBridgeError",
    "Unavailable",
    "UnknownPipeline",
    "UsageError",
]


class TaskBridgeError(Exception):
    """Base of every error here: what is wrong, and the remedy, which checks show apart.

    Of an error that was given one text, the remedy is what follows the first colon. `exit_status` is what the command
    line ends with.
    """

    exit_status = 1

    def __init__(self, what: str = "", remedy: str | None = None) -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        if remedy is None:
            what, _, remedy = what.partition(": ")
        self.what, self.remedy = what, remedy


class UsageError(TaskBridgeError):
    """The caller passed something that can never work."""

    exit_status = 2


class InvalidName(UsageError):
    """A tenant, pipeline, source, schema or key prefix that breaks the rules of `taskbridge.common.names`."""


class InvalidPolicy(UsageError):
    """A policy or pipeline whose values are out of range or contradict each other."""


class UnknownPipeline(UsageError):
    """No module that was loaded declares this pipeline."""


class InvalidInput(UsageError):
    """A file, a document or another value that cannot be taken, as a key or a message's id."""


class InvalidConnection(UsageError):
    """What was passed as a connection cannot hold records, or not tell of its commit."""


class ConfigurationError(TaskBridgeError):
    """A setting that is missing or wrong, or a pipeline module that does not import."""


class ForeignGate(ConfigurationError):
    """The gate, a database of Redis with a key prefix, belongs to the deployment of another database of Postgres."""

    def __init__(self, owner: str, key: str) -> None:
        super().__init__(
            f"this Redis database and key prefix belong to another deployment, whose records are in {owner}",
            "set TASKBRIDGE_KEY_PREFIX, or another database in TASKBRIDGE_REDIS_URL, for one of the two; "
            "if your records have moved, stop the workers that still use the former database and run "
            f"`redis-cli DEL {key}`",
        )


class MissingExtra(ConfigurationError, ImportError):
    """A library is not installed that one of the package's extras brings."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"{library}, which the extra {extra!r} of celery-taskbridge provides, is not installed",
            f"run `pip install '.[{extra}]'` in a checkout",
        )


class HandlerMistake(TaskBridgeError):
    """A handler did what no handler may do, such as end the program. Its batch counts as failed."""


class RunFailed(TaskBridgeError):
    """What the task `taskbridge.run` raises when a run fails, whatever its handler raised: pipeline, tenant and text.

    Celery treats some classes of exceptions in a special way, for example MemoryError, WorkerShutdown and Ignore. None
    of them may come from a handler, so what the handler raised is only the cause of this exception. It is logged and
    left out where its traceback would be too long for a log.
    """


class Unavailable(TaskBridgeError):
    """Postgres, Redis or the broker cannot be used now: it is down, refuses us, or is too old."""


class AlreadyRunning(Unavailable):
    """Another process serves this data directory."""


class ForeignCluster(Unavailable):
    """The database was restored into another cluster, where its transaction ids mean nothing, and needs a rebase."""


class SchemaMismatch(TaskBridgeError):
    """The database is at a schema that this version of TaskBridge does not know."""
