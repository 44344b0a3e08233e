"""Postgres: the connection pool, and what every statement shares: time limits, pipelines, retries.

A statement is limited twice: Postgres cancels it after `statement_timeout`, and this process gives up the connection a
little later, because a server that has stopped, or a route that was dropped, cancels nothing.

The connection may lead to a pooler, such as PgBouncer in transaction mode, where each transaction can run in another
session of the server, which other clients use afterwards. A pooler is recognized when the connection is opened. No
setting may stay in its sessions: each transaction begins with the limits (`Bounded.limits`), and nothing is prepared.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import parse_qs, unquote

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DeadlockDetected, LockNotAvailable, QueryCanceled, TooManyConnections, error_from_result
from psycopg.pq import ExecStatus, PipelineStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.rows import dict_row, scalar_row
from sqlalchemy import URL, Connection, Engine, QueuePool, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError

from taskbridge.common.names import DEFAULT_SCHEMA
from taskbridge.common.server_errors import wrapped_error
from taskbridge.errors import ConfigurationError, Unavailable
from taskbridge.store.queries import LOCAL, SCHEMA_OPTION, queries, query, setting

if TYPE_CHECKING:
    from taskbridge.common.run_key import RunKey

__all__ = [
    "GRACE",
    "LOOKUPS",
    "OLDEST_POSTGRES",
    "SHORT_WAIT",
    "SILENT",
    "AsyncPipeline",
    "Bounded",
    "Broken",
    "NoAnswer",
    "NoSession",
    "check_version",
    "checked_out",
    "connect",
    "distrust",
    "driver_error",
    "driver_of",
    "fetch",
    "fetch_within",
    "in_one_message",
    "in_one_trip",
    "is_busy",
    "is_without_session",
    "local_settings",
    "milliseconds",
    "new_session",
    "parameters_of",
    "pooler_of",
    "rows",
    "scalar",
    "session_name",
    "shorter",
    "successor_of",
    "typed_rows",
    "with_second_try",
    "within",
]

T = TypeVar("T")


OLDEST_POSTGRES: Final = 15
"""The oldest supported major version. It still received fixes when it was chosen; the tests run on a newer one."""
GRACE: Final = 1.0
"""Seconds that a process waits longer than Postgres may work: an error says more than a lost connection."""
POOLER_TRIES: Final = 5
"""How often two connections are checked for which session of the server they use."""
OPENED_WITHIN: Final = 25.0
"""Seconds for opening a session that has no statement timeout."""
SHORT_WAIT: Final = "50ms"
"""How long to wait for a lock at most while several runs wait for the result."""

LOOKUPS: Final = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
}
"""Settings for a statement that looks up few rows, each by its key.

Otherwise the planner reads a table of some ten thousand rows from its beginning and joins that. The block
`batch_settings` explains `jit`.
"""


class NoAnswer(psycopg.OperationalError):
    """Postgres did not answer in time and the connection was given up. Whether the statement took effect is unknown."""


class NoSession(psycopg.OperationalError):
    """Postgres, or a pooler in front of it, has no session left for this process. No statement was sent."""


class Broken(psycopg.OperationalError):
    """The connection broke. Whether the statement took effect is unknown."""


SILENT: Final = (Broken, NoAnswer, QueryCanceled)
"""Errors of a statement that Postgres did not answer in time, or at all: the next one may take as long."""

_NONE_LEFT: Final = (
    "too many clients",
    "too many connections",
    "connection slots",
    "no more connections allowed",
    "query_wait_timeout",
)
"""Parts of the messages of Postgres and PgBouncer if no session is left, in English.

libpq keeps no SQLSTATE of a failed login, so a server with another language in `lc_messages` looks unreachable.
"""

# The URL.

_DRIVER: Final = "postgresql+psycopg"
_UNREADABLE: Final = (
    "TASKBRIDGE_POSTGRES_URL cannot be read",
    "write postgresql://user:password@host:port/database, with special characters percent-encoded",
)
_NEVER: Final = "none"


def parameters_of(url: str) -> dict[str, Any]:
    """Return the parameters for psycopg: those of libpq, and `prepare_threshold` (a number, or None).

    Several hosts are written as libpq's `a:1,b:2`, or as SQLAlchemy's `?host=a:1&host=b:2`.

    Raises:
        ConfigurationError: the URL cannot be read.
    """
    return _read_url(url)[1]


def _read_url(url: str) -> tuple[URL, dict[str, Any]]:
    """Return SQLAlchemy's form of a URL, which describes an engine, and the parameters to connect with."""
    try:
        form, values = _as_sqlalchemy(url)
    except (ArgumentError, ValueError):
        form, values = URL.create(_DRIVER), _as_libpq(url)
    texts = {name: ",".join(value) if isinstance(value, tuple) else str(value) for name, value in values.items()}
    threshold = texts.pop("prepare_threshold", None)
    parameters: dict[str, Any] = {name: text for name, text in texts.items() if text.strip(",")}
    try:
        make_conninfo(**parameters)
        int(float(parameters.get("connect_timeout", 0)))
        if threshold is not None:
            parameters["prepare_threshold"] = None if threshold.lower() == _NEVER else int(threshold)
    except (psycopg.ProgrammingError, ValueError, OverflowError):
        # A password that is not percent-encoded may look like parameters.
        given = parse_qs(url.partition("?")[2])
        names = "" if re.search("@|password", url.partition("?")[2]) else f" ({', '.join(given)})"
        raise ConfigurationError(
            f"TASKBRIDGE_POSTGRES_URL has a parameter after its `?` that libpq does not take{names}",
            "correct it or leave it out: https://www.postgresql.org/docs/current/libpq-connect.html lists them all",
        ) from None
    return form, parameters


def _as_sqlalchemy(url: str) -> tuple[URL, dict[str, Any]]:
    """Parse a URL like SQLAlchemy, which is more lenient than libpq: that allows no slash in a password."""
    form = make_url(url).set(drivername=_DRIVER)
    values = form.get_dialect()().create_connect_args(form)[1]
    return form, {**values, **{name: unquote(values[name]) for name in ("host", "dbname") if name in values}}


def _as_libpq(url: str) -> dict[str, Any]:
    scheme, _, rest = url.partition("://")
    where, _, options = rest.partition("?")
    try:
        values: dict[str, Any] = conninfo_to_dict(f"postgresql://{where}")
        int(values.get("port", "").replace(",", "") or 0)
    except (psycopg.ProgrammingError, ValueError):
        scheme = ""
    if not scheme or not rest:
        raise ConfigurationError(*_UNREADABLE) from None
    return values | {name: ",".join(several) for name, several in parse_qs(options).items()}


# A session.

_STYLES: Final = {"DateStyle": "ISO", "IntervalStyle": "postgres"}
"""The styles that psycopg can read. Postgres reports both to each new session."""
_OF_A_CLIENT: Final = (
    "client_encoding",
    "application_name",
    "DateStyle",
    "TimeZone",
    "standard_conforming_strings",
)
"""Parameters that a client sets at login and Postgres reports. PgBouncer restores them for each client of a session
(https://www.pgbouncer.org/config.html, `track_extra_parameters`)."""


class _EndsWithSync:
    """A pipeline that ends with its Sync.

    psycopg asks for a Flush after it. One that arrives once the transaction is over makes PgBouncer give the client a
    session of the server again, which it keeps until its next transaction.
    """

    def _exit_gen(self: Any) -> PQGen[None]:
        self._enqueue_sync()
        try:
            yield from self._communicate_gen()
        finally:
            yield from self._fetch_gen(flush=False)


class _Pipeline(_EndsWithSync, psycopg.Pipeline):
    pass


class AsyncPipeline(_EndsWithSync, psycopg.AsyncPipeline):
    """See `_EndsWithSync`."""


class Bounded(psycopg.Connection[Any]):
    """A connection that is given up if an answer takes longer than `answer_timeout` seconds; None: no limit."""

    answer_timeout: float | None = None
    pooled: bool = False
    """Whether there is a pooler in front of Postgres, so that no setting of ours may stay in a session."""
    limits: Mapping[str, str] = {}
    """Settings of Postgres with which each transaction begins, unless they are set for the session."""
    settings: str = ""
    """The statement that restores the settings with which the session was opened, after RESET ALL."""
    opened: float = -math.inf
    """When opening it began, by the monotonic clock of the process."""
    is_handlers: bool = False
    """Whether it is the connection object of a handler."""

    def __init__(self, pgconn: PGconn, *arguments: Any) -> None:
        super().__init__(pgconn, *arguments)
        self.cursor_factory = _Cursor

    @property
    def statement_timeout(self) -> float | None:
        """How many seconds Postgres may work on a statement; None: no limit."""
        return None if self.answer_timeout is None else self.answer_timeout - GRACE

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        """Send the statements of the block at once."""
        if self._pipeline is None:
            self._pipeline = _Pipeline(self)
        with super().pipeline() as pipeline:
            yield pipeline

    @property
    def ended(self) -> bool:
        """Whether the session ended while it was idle. This costs a system call but no round trip.

        A server sends nothing to an idle session but the reason of its end, or a notification if it LISTENs.
        """
        if self.closed:
            return True
        socket = select.poll()
        socket.register(self.fileno(), select.POLLIN)
        return bool(socket.poll(0))

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as psycopg does.

        The text of an error is only its primary message. The rest (DETAIL, CONTEXT, the line of the statement) quotes
        rows and parameters, which are documents; the error's `diag` has it.

        Raises:
            NoAnswer: it took longer than `answer_timeout`; the connection is closed. This does not apply with a
                `timeout`: silence is normal while one waits for notifications.
        """
        try:
            if timeout is not None:
                return super().wait(gen, interval, timeout)
            if self.answer_timeout is not None:
                # psycopg has no timeout of its own before 3.3.
                gen = self._in_time(gen, self.answer_timeout)
            return super().wait(gen, interval)
        except psycopg.Error as error:
            if error.diag.message_primary:
                error.args = (error.diag.message_primary,)
            raise

    def _in_time(self, gen: PQGen[T], seconds: float) -> PQGen[T]:
        """Run `gen`, which psycopg resumes at least ten times a second, for at most so many seconds."""
        deadline = monotonic() + seconds
        try:
            wanted = next(gen)
            while True:
                wanted = gen.send((yield wanted))
                if monotonic() >= deadline:
                    self.pgconn.finish()
                    raise NoAnswer(f"timeout: Postgres has not answered for {seconds:g} s")
        except StopIteration as end:
            answer: T = end.value
            return answer

    def exchange(self, statements: Sequence[str], needed: int | None = None) -> list[PGresult]:
        """Send statements without parameters as one message; return the result of each, up to the first that failed.

        Raises:
            psycopg.Error: one of the first `needed` statements failed (None: any of them), or there was no answer.
        """
        with self.lock:
            return self.wait(self._exchange(statements, needed))

    def _exchange(self, statements: Sequence[str], needed: int | None = None) -> PQGen[list[PGresult]]:
        self.pgconn.send_query("; ".join(statements).encode())
        results: list[PGresult] = yield from generators.execute(self.pgconn)
        if results[-1].status == ExecStatus.FATAL_ERROR and (needed is None or len(results) <= needed):
            raise error_from_result(results[-1])
        return results

    def bound(self, statement: str, values: Mapping[str, Any]) -> str:
        """Return a statement with its values in the text, as `exchange` needs it."""
        return psycopg.ClientCursor(self).mogrify(statement, values)

    def _start_query(self) -> PQGen[None]:
        """Send the limits with the BEGIN of a connection that is not in autocommit. In a pipeline the caller does."""
        if not self.limits or self._autocommit or self._pipeline or not _is_idle(self):
            yield from super()._start_query()
            return
        yield from self._exchange([self._get_tx_start_command().decode(), *local_settings(self.limits)])


class _Cursor(psycopg.Cursor[Any]):
    """A cursor that wraps each statement in a transaction with the connection's limits, in autocommit."""

    def execute(self, *arguments: Any, **options: Any) -> Self:
        """Execute as psycopg does, in one round trip."""
        connection = self._conn
        is_alone = connection.autocommit and connection.pgconn.pipeline_status == PipelineStatus.OFF
        if not (is_alone and isinstance(connection, Bounded) and connection.limits and _is_idle(connection)):
            return super().execute(*arguments, **options)
        try:
            with in_one_trip(connection):
                super().execute(*arguments, **options)
        except psycopg.Error:
            if not connection.closed:
                connection.rollback()
            raise
        return self


def _is_idle(connection: psycopg.Connection[Any]) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def local_settings(settings: Mapping[str, str | None]) -> list[str]:
    """Return the statements that set parameters for a transaction; None: the session's own value."""
    return [setting(name, value, LOCAL) for name, value in settings.items()]


def milliseconds(seconds: float | None) -> str:
    """Return a limit as Postgres takes it; None: any time."""
    return f"{round((seconds or 0) * 1000)}ms"


def open_session(statement_timeout: float | None, parameters: Mapping[str, Any]) -> Bounded:
    """Open a session with a time limit for statements in seconds; None: no limit. A limit in the URL takes precedence.

    Raises:
        NoSession: there is none left, or a pooler provided none within the time of a statement.
    """
    opened, seconds = monotonic(), (statement_timeout or OPENED_WITHIN) + GRACE
    usual = {
        # The default of a role or a database may be another encoding, which may lack characters of a name or document.
        "client_encoding": "UTF8",
        "application_name": "taskbridge",
        # To detect a dead peer while a session is idle, or a long statement runs.
        "connect_timeout": 5,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": round((statement_timeout or OPENED_WITHIN) * 1000),
    }
    try:
        with ExitStack() as unless_ready:
            connection = unless_ready.enter_context(closing(Bounded.connect(**{**usual, **parameters})))
            connection.opened = opened
            connection.answer_timeout = max(opened + seconds - monotonic(), GRACE)
            connection.autocommit = True
            # 0 means no limit.
            limit = _take_settings(connection, statement_timeout, parameters)
            connection.autocommit = False
            unless_ready.pop_all()
    except NoAnswer as error:
        message = f"Postgres, or a pooler, accepted the connection, but provided no session for {seconds:g} s"
        raise NoSession(message) from error
    except psycopg.OperationalError as error:
        if error.sqlstate == TooManyConnections.sqlstate or any(text in str(error) for text in _NONE_LEFT):
            raise NoSession(*error.args) from error
        raise
    connection.answer_timeout = limit + GRACE if limit else None
    return connection


def _take_settings(connection: Bounded, statement_timeout: float | None, parameters: Mapping[str, Any]) -> float | None:
    """Detect a pooler, limit the time of statements, and set the date and interval styles that psycopg can read.

    The default of a role or a database may be another style. Returns the limit in seconds; one in the `options` of the
    URL takes precedence.
    """
    status = connection.pgconn.parameter_status
    # The date style includes the order, as in `ISO, DMY`.
    settings = {
        name: style
        for name, style in _STYLES.items()
        if (status(name.encode()) or style.encode()).partition(b",")[0] != style.encode()
    }
    # Postgres ignores the case of the name, and treats a hyphen as an underscore.
    options = parameters.get("options", "").lower().replace("-", "_")
    has_own = statement_timeout is not None and "statement_timeout" in options
    if statement_timeout is not None and not has_own:
        settings["statement_timeout"] = milliseconds(statement_timeout)
    # A URL that turns off prepared statements is for a pooler that cannot be detected.
    prepares_nothing = parameters.get("prepare_threshold", 0) is None
    values = {
        "pid": -1 if prepares_nothing else connection.pgconn.backend_pid,
        "names": [*settings],
        "values": [*settings.values()],
    }
    with psycopg.ClientCursor(connection) as cursor:
        is_direct, own, _ = cursor.execute(query("open_session"), values).fetchone() or (False, 0.0, None)
    limit = own if has_own else statement_timeout
    if not is_direct:
        connection.pooled, connection.limits = True, settings
        if "prepare_threshold" not in parameters:
            connection.prepare_threshold = None
    connection.settings = _settings_again(connection, limit)
    return limit


def _settings_again(connection: Bounded, limit: float | None) -> str:
    """Return the statement that restores these settings, whether they came with the login, from a pooler, or by SET."""
    status = connection.pgconn.parameter_status
    names = _OF_A_CLIENT if connection.pooled else (*_OF_A_CLIENT, "IntervalStyle")
    settings = {name: value.decode() for name in names if (value := status(name.encode()))}
    if limit and not connection.pooled:
        settings["statement_timeout"] = milliseconds(limit)
    values = {"names": [*settings], "values": [*settings.values()], "locally": False}
    return connection.bound(query("set_parameters"), values)


# The pool.


class _Pool(QueuePool):
    """A pool that uses no session that was opened before `distrusted`, by the monotonic clock of the process."""

    distrusted: float = -math.inf


def connect(
    url: str, schema: str = DEFAULT_SCHEMA, *, statement_timeout: float | None = None, **options: Any
) -> Engine:
    """Return an engine for `url`, with the tables in `schema`. It connects on first use.

    Any `postgresql://` or `postgres://` URL is accepted; the driver is psycopg. Error messages do not contain the
    parameters of a statement, because these are documents.

    Args:
        url: where Postgres is. Parameters of the URL take precedence, including a statement_timeout in its `options`.
        schema: the Postgres schema of the tables.
        statement_timeout: the maximum seconds of a statement; None: no limit.
        options: passed to `sqlalchemy.create_engine`.

    Raises:
        ConfigurationError: the URL cannot be parsed.
    """
    form, parameters = _read_url(url)
    engine = create_engine(
        form,
        creator=lambda: open_session(statement_timeout, parameters),
        # As many connections as there are threads at work, whatever the size of the worker's pool.
        max_overflow=-1,
        hide_parameters=True,
        execution_options={SCHEMA_OPTION: schema},
        poolclass=_Pool,
        **options,
    )

    def check_out(connection: Bounded, _record: Any, _proxy: Any) -> None:
        if connection.opened <= _pool_of(engine).distrusted or connection.ended:
            raise DisconnectionError  # the pool closes it and opens another

    def check_in(connection: Bounded | None, record: Any) -> None:
        # A handler returned it, and it was not reset.
        if connection is not None and connection.is_handlers:
            record.invalidate()

    event.listen(engine, "checkout", check_out)
    event.listen(engine, "checkin", check_in)
    return engine


def distrust(engine: Engine) -> None:
    """Never again check out a session that is open now. Those in use stay open until they are returned.

    If one session broke or does not answer, others often do not either: they share a server and a route.
    `Engine.dispose` would never close those that are in use.
    """
    _pool_of(engine).distrusted = monotonic()


def _pool_of(engine: Engine) -> _Pool:
    assert isinstance(engine.pool, _Pool)  # noqa: S101 - for the type: `connect` makes no others
    return engine.pool


def new_session(engine: Engine) -> Bounded:
    """Open a session as the engine does, but not for its pool: the caller has to close it."""
    opens: Any = _pool_of(engine)._creator
    session = opens()
    assert isinstance(session, Bounded)  # noqa: S101 - for the type: `connect` makes no others
    return session


def driver_of(connection: Connection | Bounded) -> Bounded:
    """Return psycopg's connection: that of SQLAlchemy's, or the given one."""
    driver = connection if isinstance(connection, Bounded) else connection.connection.driver_connection
    assert isinstance(driver, Bounded)  # noqa: S101 - for the type: the pool opens no others
    return driver


@contextmanager
def checked_out(database: Engine) -> Iterator[Bounded]:
    """Check out psycopg's connection in autocommit, which saves a run the overhead of SQLAlchemy.

    Raises:
        Broken: the connection broke. Those that lie in the pool are not used any more.
    """
    pooled = database.raw_connection()
    driver = pooled.driver_connection
    assert isinstance(driver, Bounded)  # noqa: S101 - for the type: the pool opens no others
    try:
        driver.autocommit = True
        yield driver
        driver.autocommit = False
    except BaseException as error:
        broken = driver.broken
        # Its state is unknown, so it must not go back to the pool.
        pooled.invalidate()
        if isinstance(error, NoAnswer):
            # A retry would take as long.
            distrust(database)
        elif broken and isinstance(error, psycopg.OperationalError):
            distrust(database)
            raise Broken(*error.args) from error
        raise
    finally:
        pooled.close()


def with_second_try(work: Callable[[], T]) -> T:
    """Return what `work` returns; it is called again if its connection broke.

    A server that restarts breaks every connection in the pool. The first attempt finds that out for all of them.
    """
    try:
        return work()
    except Broken:
        return work()


class Pooler(NamedTuple):
    """A pooler in front of Postgres; `mode` is `transaction` or `session`, as observed."""

    name: str
    mode: str
    prepares: bool


def pooler_of(database: Engine, url: str) -> Pooler | None:
    """Return the pooler in front of Postgres; None: there is none.

    Two open connections use the same session of the server only in transaction mode.
    """
    with checked_out(database) as first, checked_out(database) as second:
        pids, others = (
            {scalar(driver, query("backend_pid")) for _ in range(POOLER_TRIES)} for driver in (first, second)
        )
        if pids == {first.pgconn.backend_pid}:
            return None
        prepares = first.prepare_threshold is not None
    return Pooler(_pooler_name(url), "transaction" if pids & others else "session", prepares)


def _pooler_name(url: str) -> str:
    """Query the console of PgBouncer, which not every role may use."""
    parameters = {**parameters_of(url), "dbname": "pgbouncer", "prepare_threshold": None, "connect_timeout": 5}
    try:
        with psycopg.connect(**parameters, autocommit=True) as console, psycopg.ClientCursor(console) as cursor:
            ((version,),) = cursor.execute(query("pooler_version")).fetchall()
            return str(version)
    except (psycopg.Error, ValueError):
        return "a pooler"


# Statements.


@contextmanager
def in_one_trip(driver: Bounded, begin: str | None = None) -> Iterator[None]:
    """Send the statements of the block as one transaction in one round trip."""
    with driver.pipeline():
        begin_transaction(driver, begin)
        yield
        driver.execute(query("commit"))


def begin_transaction(driver: Bounded, begin: str | None = None) -> None:
    """Begin a transaction under the connection's limits, in a pipeline.

    By default it is READ COMMITTED, whatever the database's own level is.
    """
    driver.execute(begin or query("begin"))
    if driver.limits:
        names, values = [*driver.limits], [*driver.limits.values()]
        driver.execute(query("set_parameters"), {"names": names, "values": values, "locally": True})


def in_one_message(
    driver: Bounded, statement: str, values: Mapping[str, Any], **settings: str
) -> list[tuple[Any, ...]]:
    """Execute a statement under these settings of Postgres, as a transaction of its own, and return its rows.

    It may be several, with semicolons between them: the rows are those of the last that has any. All of it is one
    message, with the values in the text. A pipeline or a transaction is several: a process that freezes between two of
    them keeps what it has locked, for as long as it is frozen.
    """
    limits = {**driver.limits, **settings}
    # A timeout may expire just as the statement ends: then it hits this statement, not the session's next one.
    after = [setting("statement_timeout", None, LOCAL)] if "statement_timeout" in limits else []
    return typed_rows(driver, driver.exchange([*local_settings(limits), driver.bound(statement, values), *after]))


def typed_rows(driver: Bounded, results: Sequence[PGresult]) -> list[tuple[Any, ...]]:
    """Return the rows of the last of these results that has any columns."""
    result = next((result for result in reversed(results) if result.status == ExecStatus.TUPLES_OK), None)
    if result is None:
        return []
    loading = Transformer.from_context(driver)
    loading.set_pgresult(result)
    return loading.load_rows(0, result.ntuples, tuple)


@contextmanager
def within(
    connection: Connection | Bounded,
    seconds: float | None,
    lock_seconds: float | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """Let each statement of the block take `seconds`, and wait `lock_seconds` of them for locks; None: any time.

    Each transaction that begins in the block has these limits and the other `settings`, in no round trip of its own.
    In one that has begun before, they hold for the rest of it.
    """
    driver = driver_of(connection)
    limits = {
        "statement_timeout": milliseconds(seconds),
        "lock_timeout": milliseconds(lock_seconds),
        **(settings or {}),
    }
    usual, answer_timeout = driver.limits, driver.answer_timeout
    own = None if seconds is None else seconds + GRACE
    try:
        if _is_idle(driver):
            driver.limits = {**usual, **limits}
        else:
            # A shorter limit holds for this statement too.
            driver.answer_timeout = min((each for each in (answer_timeout, own) if each is not None), default=None)
            driver.execute("; ".join(local_settings(limits)))
        driver.answer_timeout = own
        yield
    finally:
        driver.answer_timeout, driver.limits = answer_timeout, usual


@contextmanager
def shorter(driver: Bounded, seconds: float, lock_timeout: str) -> Iterator[None]:
    """Give the transactions that the block sends through a pipeline shorter limits, without a round trip of its own.

    Without a pooler they are set for the session and reset after the block, which costs less than in each transaction.
    `seconds` are cut to the usual limit.
    """
    own = driver.statement_timeout
    usual = {"statement_timeout": milliseconds(own) if own else None, "lock_timeout": None}
    limits = {"statement_timeout": milliseconds(min(seconds, own or seconds)), "lock_timeout": lock_timeout}
    if driver.pooled:
        before, driver.limits = driver.limits, {**driver.limits, **limits}
        yield
        driver.limits = before
        return
    for name, value in limits.items():
        driver.execute(setting(name, value))
    yield
    for name, default in usual.items():
        driver.execute(setting(name, default))


def rows(
    driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return a statement's rows, with the names of their columns."""
    return driver.cursor(row_factory=dict_row).execute(statement, values).fetchall()


def scalar(driver: psycopg.Connection[Any], statement: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the first column of a statement's first row; None: there is no row."""
    return driver.cursor(row_factory=scalar_row).execute(statement, values).fetchone()


def fetch(database: Engine, name: str, values: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Execute a named query in a transaction of its own, and return its rows."""
    with checked_out(database) as driver:
        return rows(driver, queries(database)(name), values)


def fetch_within(
    database: Engine, seconds: float | None, name: str, values: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Execute a named query as `fetch` does, but for at most so many seconds; None: any time."""
    with checked_out(database) as driver, within(driver, seconds):
        return rows(driver, queries(database)(name), values)


# Errors and names.


def driver_error(error: BaseException | None) -> psycopg.Error | None:
    """Return psycopg's error: the one that SQLAlchemy wraps, or the given one; None: it is neither."""
    found = wrapped_error(error) or error
    return found if isinstance(found, psycopg.Error) else None


def is_busy(error: BaseException) -> bool:
    """Whether a statement failed by a lock timeout or a deadlock, so that a retry may succeed."""
    return isinstance(driver_error(error), (LockNotAvailable, DeadlockDetected))


def is_without_session(error: BaseException) -> bool:
    """Whether it failed because Postgres, or a pooler in front of it, has no session left."""
    return isinstance(driver_error(error), NoSession)


def check_version(database: Engine) -> None:
    """Raise Unavailable, with the remedy, if the server is older than PostgreSQL 15."""
    (server,) = fetch(database, "server")
    if (major := server["number"] // 10_000) < OLDEST_POSTGRES:
        raise Unavailable(f"PostgreSQL {major} is too old", f"upgrade it to {OLDEST_POSTGRES} or newer")


def session_name(key: RunKey) -> str:
    """Return the name of a session that may hold locks of a run: a hash of the tenant, and the token."""
    return f"{_tenant_name(key)} {key.token}"


def _tenant_name(key: RunKey) -> str:
    of_tenant = hashlib.sha256(json.dumps((key.pipeline, key.tenant)).encode()).hexdigest()
    return f"taskbridge {of_tenant[:16]}"


def successor_of(key: RunKey) -> dict[str, str]:
    """Return the values of `end_replaced`, which ends the sessions of the runs that this one replaced."""
    return {"session": session_name(key), "of_tenant": f"{_tenant_name(key)} %"}
