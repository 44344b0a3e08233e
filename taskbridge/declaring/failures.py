"""What a failure means: who is at fault, how soon to retry, and which record cannot be handled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from taskbridge.common.server_errors import is_away
from taskbridge.common.texts import errors_of_group
from taskbridge.declaring.batch import RetryAfter

__all__ = [
    "LONGEST_OUTAGE_BACKOFF",
    "Bisection",
    "asked_to_wait",
    "backoff",
    "drop_tracebacks",
    "is_caused_by",
    "is_downstream",
]

FIRST_BACKOFF: Final = 0.5
LONGEST_BACKOFF: Final = 300.0
LONGEST_OUTAGE_BACKOFF: Final = 30.0
"""Seconds if the downstream seems to be down: the same as the longest wait between two probes of a circuit."""


def backoff(failures: int, longest: float | None = None) -> float:
    """Return the seconds until the next attempt: 0.5, doubled for each of the `failures`, up to `longest` or 300.

    Up to a quarter is subtracted at random, so that tenants that failed together do not come back together.
    """
    seconds = min(longest or LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(failures, 20))
    return seconds * random.uniform(0.75, 1.0)  # noqa: S311 - jitter, not a secret


def is_downstream(error: BaseException, also: tuple[type[Exception], ...] = ()) -> bool:
    """Whether `error`, or what it was raised from, says that something the handler calls is unavailable."""
    return any(isinstance(each, also) or _says_away(each) for each in _with_causes(error))


def _says_away(error: BaseException) -> bool:
    try:
        return is_away(error)
    except Exception:
        # An attribute may be a property of its class, which may raise anything.
        return False


def is_caused_by(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether `error`, or what it was raised from, is one of these."""
    return any(isinstance(each, kinds) for each in _with_causes(error))


def drop_tracebacks(error: BaseException) -> None:
    """Forget where `error`, and what it was raised from, were raised, once nobody shows that any more.

    Their frames refer to the error in turn. Such a cycle stays in memory until Python next looks for cycles among old
    objects, which may take hundreds of failures.
    """
    for each in _with_causes(error):
        BaseException.with_traceback(each, None)


def asked_to_wait(error: BaseException) -> RetryAfter | None:
    """Return `error` if it is a RetryAfter, or the longest one of a group (as of a `TaskGroup`) of nothing else."""
    waits, unseen = [], [error]
    while unseen:
        each = unseen.pop()
        if isinstance(each, BaseExceptionGroup):
            unseen += errors_of_group(each)
        elif isinstance(each, RetryAfter):
            # A subclass may not have called `RetryAfter.__init__`.
            waits.append(each if {"seconds", "scope"} <= vars(each).keys() else RetryAfter(None))
        else:
            return None
    return max(waits, key=lambda each: each.seconds)


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    unseen: list[BaseException | None] = [error]
    while unseen:
        each = unseen.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        unseen.append(_cause_of(each))
        if isinstance(each, BaseExceptionGroup):
            unseen += errors_of_group(each)


def _cause_of(error: BaseException) -> BaseException | None:
    # Not by attribute access: its class may have properties of these names, which may raise anything.
    cause, context, hides_context = (
        vars(BaseException)[name].__get__(error) for name in ("__cause__", "__context__", "__suppress_context__")
    )
    origin: BaseException | None = cause or (None if hides_context else context)
    return origin


@dataclass(frozen=True, slots=True)
class Bisection:
    """The search for a record that cannot be handled among those after the cursor.

    `limit`: maximum size of the next batch (None: the pipeline's batch size). `suspects`: one of this many next records
    cannot be handled (0: no failure is known). `attempts`: how often in a row a batch of this size failed. For a single
    record, `revision` is its revision, `attempts` counts its errors, `outages` those that blame the downstream, and
    `deaths` the runs that died while they handled it.

    A batch that fails is retried once unchanged, then halved with each failure until one record is alone. If a half is
    handled, the bad record is in the other half. Once it is found, batches double again with each success.
    """

    limit: int | None = None
    suspects: int = 0
    attempts: int = 0
    deaths: int = 0
    revision: int | None = None
    outages: int = 0

    def failed(
        self, size: int, revision: int | None = None, *, died: bool = False, downstream: bool = False
    ) -> Bisection:
        """Return what follows the failure of a batch of `size` records, the first of which has this `revision`.

        Failures are counted per record: those of another record that was alone before do not count for this one.
        """
        if size == 1:
            before = self if self.is_alone and self.revision == revision else Bisection()
            return Bisection(
                1, 1, before.attempts + (not died), before.deaths + died, revision, before.outages + downstream
            )
        if self.suspects == 0:
            return Bisection(size, size, 1)
        return Bisection((size + 1) // 2, size)

    def unread(self, size: int, revision: int | None = None) -> Bisection:
        """Return what follows when a batch of `size` records, the first of this `revision`, could not be read."""
        return self.failed(size, revision) if size == 1 else replace(self, limit=(size + 1) // 2, attempts=0)

    def told_to_wait(self, size: int) -> Bisection:
        """Return what follows if the handler asked to wait with a batch of `size` records.

        If it asks again with as many records or fewer, it may make a request per record, so the next batch is halved.
        """
        if size == 1:
            return self
        again = self.limit is not None and size <= self.limit
        return replace(self, limit=(size + 1) // 2 if again else size)

    def handled(self, size: int, batch_size: int) -> Bisection:
        """Return what follows the success of a batch of `size` records in a pipeline with this `batch_size`."""
        left = self.suspects - size
        if left > 0:
            return Bisection((left + 1) // 2, left)
        if self.limit is None or self.limit * 2 >= batch_size:
            return Bisection()
        return Bisection(self.limit * 2)

    @property
    def is_alone(self) -> bool:
        """Whether the search has narrowed down to one record."""
        return self.suspects == 1

    @property
    def tries(self) -> int:
        """How often in a row the batch failed, errors and deaths together."""
        return self.attempts + self.deaths
