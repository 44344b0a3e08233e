"""The errors that you can catch.

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
contains a password. If a client library raises an error in a command or a producer, you get `Unavailable`. In a run,
the library's own error makes the run fail, and the run is retried.
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
    """The base class of all errors. Its attribute `what` says what is wrong, and `remedy` says what to do.

    If an error is created with a single text, the part after the first colon is the remedy. `exit_status` is the exit
    status of a command that ends with this error.
    """

    exit_status = 1

    def __init__(self, what: str = "", remedy: str | None = None) -> None:
        super().__init__(f"{what}: {remedy}" if remedy else what)
        if remedy is None:
            what, _, remedy = what.partition(": ")
        self.what, self.remedy = what, remedy


class UsageError(TaskBridgeError):
    """The caller passed a value that can never work."""

    exit_status = 2


class InvalidName(UsageError):
    """The name of a tenant, pipeline, source, schema or key prefix is not allowed."""


class InvalidPolicy(UsageError):
    """The values of a policy or pipeline are out of range or contradict each other."""


class UnknownPipeline(UsageError):
    """No loaded module declares this pipeline."""


class InvalidInput(UsageError):
    """A file, a document, a key, a message id or another value is not accepted."""


class InvalidConnection(UsageError):
    """The object passed as `connection` cannot write records, or cannot report its commit."""


class ConfigurationError(TaskBridgeError):
    """A setting is missing or wrong, or a pipeline module cannot be imported."""


class ForeignGate(ConfigurationError):
    """The Redis database and key prefix belong to a deployment with another Postgres database."""

    def __init__(self, owner: str, key: str, variable: str = "TASKBRIDGE_REDIS_URL") -> None:
        super().__init__(
            f"this Redis database and key prefix belong to another deployment, whose records are in {owner}",
            f"set TASKBRIDGE_KEY_PREFIX, or another database in {variable}, for one of the two; "
            "if your records have moved, stop the workers that still use the former database and run "
            f"`redis-cli DEL {key}`",
        )


class MissingExtra(ConfigurationError, ImportError):
    """A library is not installed. One of the package's extras provides it."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(
            f"{library}, which the extra {extra!r} of celery-taskbridge provides, is not installed",
            f"run `pip install 'celery-taskbridge[{extra}]'`, or in a checkout `pip install '.[{extra}]'`",
        )


class HandlerMistake(TaskBridgeError):
    """A handler did something that is not allowed, such as exit the process. Its batch counts as failed."""


class RunFailed(TaskBridgeError):
    """A run failed. The task `taskbridge.run` raises this error, with the pipeline, the tenant and the handler's error.

    The handler's own exception is attached as the cause. It is not raised itself, because Celery treats some exceptions
    specially, such as MemoryError and Ignore. If its traceback is very long, it is logged separately instead.
    """


class Unavailable(TaskBridgeError):
    """Postgres, Redis or the broker cannot be used: it is down, refuses the connection, or is too old."""


class AlreadyRunning(Unavailable):
    """Another process already uses this data directory."""


class ForeignCluster(Unavailable):
    """The database was restored into another cluster and needs a rebase: its transaction ids are invalid."""


class SchemaMismatch(TaskBridgeError):
    """The database has a schema that this version of TaskBridge does not know."""
