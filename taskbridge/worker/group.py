"""The fast path for several short runs: each step (begin, claim, advance, settle) is one round trip for all of them.

It covers only the ordinary case: each run takes one page, its handler is quick, and nothing fails. Any other run leaves
the group and continues in `do_run`, with the token with which it began.

No run waits long for another one of its group. Runs whose handlers have returned are advanced and settled before
anything that may take long. If a call is slow or never returns, the heartbeat's alarm puts the runs that have not
started back into the queue, and finishes those whose handlers have returned.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Final, NamedTuple, TypeVar

from taskbridge.common.run_key import RunKey
from taskbridge.process.runtime import Runtime
from taskbridge.store import CLAIMED_WITHIN, CursorLost, Cursors, Move, Page, advance_together
from taskbridge.worker.delivery import Run, deliver
from taskbridge.worker.run import (
    STOPPED,
    admit,
    begin,
    do_run,
    handed_over,
    result_after,
    result_of,
    settle,
)

__all__ = ["do_group"]

T = TypeVar("T")

ADVANCED_WITHIN: Final = 0.01
"""Seconds after which what handlers have done is advanced before another handler is called."""


class _Done(NamedTuple):
    """A run whose handler has returned. `moves`: the advances past `page` that have not been committed yet."""

    run: Run
    page: Page
    moves: Sequence[Move] = ()


def do_group(runtime: Runtime, keys: Sequence[RunKey], seconds: float) -> list[Run | None]:
    """Perform one run of each of several tenants; return each, or None if it did not begin.

    Runs that have not started `seconds` after the claims return to the queue. Runs that have left the group may take
    long; those of them that have not started return after a further time budget of a run.
    """
    runs = begin(runtime, keys)
    begun = [run for run in runs if run is not None]
    group, budget = _Group(runtime), runtime.settings.run_budget
    try:
        group.claim(begun)
        with (
            runtime.heartbeat.alarm(seconds, group.relieve),
            runtime.heartbeat.alarm(seconds + budget, group.return_the_others),
        ):
            group.call_handlers()
            group.finish()
            group.do_the_others()
    finally:
        # If the process is shutting down, this finishes what handlers have done; other workers take the rest.
        group.relieve()
        group.return_the_others()
    return runs


class _Group:
    """The unfinished runs of a group. The alarm's thread takes runs from it too, but each run is taken only once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._claimed: deque[tuple[Run, Page]] = deque()
        """Runs whose handlers are to be called."""
        self._done: deque[_Done] = deque()
        """Runs whose handlers have returned, but that are not settled yet."""
        self._leaving: deque[Run] = deque()
        """Runs that have left the group and have not started."""

    def claim(self, runs: Sequence[Run]) -> None:
        """Claim the cursors of runs and read their pages, in one round trip for each source."""
        # This thread may be interrupted before each run has its place.
        self._leaving.extend(runs)
        claiming: dict[Cursors, list[Run]] = {}
        for run in runs:
            if len(runs) == 1 or run.begun.died or run.begun.probe is not None:
                continue
            try:
                self._runtime.register(run.pipeline)
            except Exception as error:
                self._end(run, error)
            else:
                claiming.setdefault(run.cursors, []).append(run)
        pages = _claimed_pages(claiming)
        self._leaving.clear()
        late = {run.key for run in chain.from_iterable(claiming.values())} - pages.keys()
        for run in runs:
            if (page := pages.get(run.key)) is not None:
                self._claimed.append((run, page))
            elif run.key not in late and not run.is_over:
                self._leaving.append(run)
        self._return([run for run in runs if run.key in late])

    def call_handlers(self) -> None:
        """Call one handler after another."""
        advanced_at = time.monotonic()
        for run, page in _taken_from(self._claimed):
            with handed_over(run):
                try:
                    self._deliver(run, page)
                except Exception as error:
                    # What follows may take long, so finish the others first.
                    self.finish()
                    self._end(run, error)
            if time.monotonic() - advanced_at > ADVANCED_WITHIN and self._claimed:
                self.finish()
                advanced_at = time.monotonic()

    def _deliver(self, run: Run, claimed: Page) -> None:
        page = admit(run, claimed)
        if isinstance(page, Page):
            moves: list[Move] = []
            deliver(run, page, moves)
            self._done.append(_Done(run, page, moves))
        else:
            run.result = page
            self._done.append(_Done(run, claimed))

    def finish(self) -> None:
        """Advance the cursors of completed runs in one commit, and settle these runs in one round trip.

        A run whose advance may take long is handled after the others.
        """
        done = [each for each in _taken_from(self._done) if not each.run.is_over]
        try:
            late = self._advance(done)
            settle(self._runtime, [each.run for each in done if each.run.result is not None])
        except BaseException:
            # This thread was interrupted; `relieve` finishes them.
            self._done.extend(done)
            raise
        for (run, page, moves), error in late:
            with handed_over(run):
                try:
                    if error is not None:
                        raise error
                    for move in moves:
                        _advance_alone(run, move)
                    run.result = result_after(run, page)
                except Exception as failure:
                    run.result = result_of(run, failure)
                settle(self._runtime, [run])

    def _advance(self, done: Sequence[_Done]) -> list[tuple[_Done, Exception | None]]:
        """Advance together; return the runs that have no result yet, with their errors.

        A run without an error must be advanced by itself.
        """
        answers = _advanced(self._runtime, done)
        late: list[tuple[_Done, Exception | None]] = []
        for each in done:
            run, page, moves = each
            answer = answers.get(run.key, False)
            if run.result is not None:
                continue
            if not isinstance(answer, bool):
                late.append((each, answer))
                continue
            for move in moves:
                run.count(move, first_success=answer)
            try:
                run.result = result_after(run, page)
            except CursorLost as error:
                late.append((each, error))
        return late

    def do_the_others(self) -> None:
        """Perform the runs that have left the group, one after another."""
        for run in _taken_from(self._leaving):
            run.began_together = 1
            do_run(self._runtime, run.key, run)

    def relieve(self) -> None:
        """Return the runs whose handlers were not called to the queue, and finish the completed ones."""
        self._return([run for run, _ in _taken_from(self._claimed)])
        self.finish()

    def return_the_others(self) -> None:
        """Return the runs that have left the group and have not started."""
        self._return([*_taken_from(self._leaving)])

    def _return(self, runs: Sequence[Run]) -> None:
        # Each goes to the front of its queue, so the first run is returned last.
        returned = [run for run in reversed(runs) if not run.is_over]
        for run in returned:
            run.result = STOPPED
        settle(self._runtime, returned)

    def _end(self, run: Run, error: Exception) -> None:
        run.result = result_of(run, error)
        settle(self._runtime, [run])


def _claimed_pages(claiming: Mapping[Cursors, Sequence[Run]]) -> dict[RunKey, Page | None]:
    """Claim cursors, in one round trip for each source; return the pages, or None for a claim that may take long.

    A run has no entry if the claims before it took too long.
    """
    pages: dict[RunKey, Page | None] = {}
    ends = time.monotonic() + CLAIMED_WITHIN
    for cursors, runs in claiming.items():
        if time.monotonic() > ends:
            break
        try:
            found = cursors.claim_together([run.claim for run in runs])
        except Exception:
            # It is unknown which run caused it, and the next round trip may take as long.
            pages[runs[0].key] = None
            break
        pages |= {run.key: page for run, page in zip(runs, found, strict=True)}
    return pages


def _advanced(runtime: Runtime, done: Sequence[_Done]) -> Mapping[RunKey, bool | Exception | None]:
    """Advance the cursors of runs in one commit; return the answer for each, as `advance_together` does."""
    moving = [(run, move) for run, _, moves in done if run.result is None for move in moves]
    if not moving:
        return {}
    try:
        answers = advance_together(runtime.engine, [move for _, move in moving])
    except Exception as error:
        # It is unknown whether any of them advanced. One run deals with the error; the others return to the queue.
        for run, _ in moving[1:]:
            run.result = STOPPED
        return {moving[0][0].key: error}
    return {run.key: answer for (run, _), answer in zip(moving, answers, strict=True)}


def _advance_alone(run: Run, move: Move) -> None:
    with run.cursors.transaction(run.key) as transaction:
        first_success = transaction.advance(move)
    run.count(move, first_success=first_success)


def _taken_from(waiting: deque[T]) -> Iterator[T]:
    """Yield and remove one after another until none is left."""
    while True:
        try:
            taken = waiting.popleft()
        except IndexError:
            return
        yield taken
