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

Every message says what is wrong and what to do next. It names the tenant or the record if there is one, and never
contains a password. Commands and producers get errors of the client libraries as `Unavailable`. A run does not
translate them: it fails and is retried.
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
    """Base class of all errors here. It says what is wrong and what the remedy is.

    `doctor` and other checks show the two separately. If an error is created with a single text, the remedy is what
    follows the first colon. `exit_status` is the exit status of the command line.
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
    """No loaded module declares this pipeline."""


class InvalidInput(UsageError):
    """A file, a document or another value, such as a key or a message id, that is not accepted."""


class InvalidConnection(UsageError):
    """The object passed as a connection cannot write records, or cannot report its commit."""


class ConfigurationError(TaskBridgeError):
    """A setting is missing or wrong, or a pipeline module cannot be imported."""


class ForeignGate(ConfigurationError):
    """The gate (a Redis database with a key prefix) belongs to a deployment with another Postgres database."""

    def __init__(self, owner: str, key: str) -> None:
        super().__init__(
            f"this Redis database and key prefix belong to another deployment, whose records are in {owner}",
            "set TASKBRIDGE_KEY_PREFIX, or another database in TASKBRIDGE_REDIS_URL, for one of the two; "
            "if your records have moved, stop the workers that still use the former database and run "
            f"`redis-cli DEL {key}`",
        )


class MissingExtra(ConfigurationError, ImportError):
    """A library that one of the package's extras provides is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"{library}, which the extra {extra!r} of celery-taskbridge provides, is not installed",
            f"run `pip install 'celery-taskbridge[{extra}]'`, or in a checkout `pip install '.[{extra}]'`",
        )


class HandlerMistake(TaskBridgeError):
    """A handler did something that handlers must not do, such as exit the process. Its batch counts as failed."""


class RunFailed(TaskBridgeError):
    """Raised by the task `taskbridge.run` when a run fails, whatever its handler raised: pipeline, tenant and text.

    Celery treats some exceptions in a special way, for example MemoryError, WorkerShutdown and Ignore. A handler's
    exception must not have such an effect on Celery, so it is only attached as the cause of this one. If its traceback
    would be too long for a log, it is logged separately and is not attached.
    """


class Unavailable(TaskBridgeError):
    """Postgres, Redis or the broker cannot be used now: it is down, refuses the connection, or is too old."""


class AlreadyRunning(Unavailable):
    """Another process serves this data directory."""


class ForeignCluster(Unavailable):
    """The database was restored into another cluster, in which its transaction ids are invalid: it needs a rebase."""


class SchemaMismatch(TaskBridgeError):
    """This version of TaskBridge does not know the schema that the database has."""
