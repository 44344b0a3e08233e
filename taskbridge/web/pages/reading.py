"""The pages: what each asks, and with which values it is shown. All of it runs in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from threading import Lock
from time import monotonic
from typing import Any, Final, get_args

from celery import Celery
from starlette.datastructures import QueryParams

from taskbridge.common.names import check_key, check_source_name, check_tenant
from taskbridge.common.server_errors import translated_errors
from taskbridge.declaring.pipeline import Pipeline
from taskbridge.errors import InvalidInput, Unavailable
from taskbridge.integration.checks import Finding, examine, worst
from taskbridge.observing.answers import Answers
from taskbridge.observing.overview import MOST_OF_A_TENANT, MOST_SORTED
from taskbridge.observing.shapes import By, Finds, Health, PipelinePulse, Sort
from taskbridge.observing.troubles import is_overdue, nobody_looks
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.store import Audit, document_of
from taskbridge.store.past import Before
from taskbridge.web.endpoint import own_app
from taskbridge.web.pages import charts
from taskbridge.web.pages.acting import AT_ONCE

__all__ = ["HOURS", "NotFound", "Reading"]

LONGEST_DOCUMENT: Final = 20_000
"""Characters of a document that are shown."""
HEALTH_SECONDS: Final = 3.0
"""For so long a look at the health of all is shown again."""
FAILED_SECONDS: Final = 15.0
"""For so long after a look at the health of all has failed, pages that are not about it do not wait for another."""
CHECK_SECONDS: Final = 10.0
"""For so long what the checks found is shown again."""
FIRST_YEAR, LAST_YEAR = 2000, 9999
POINTS: Final = 60
FEWEST_POINTS: Final = 4
"""With fewer there is no chart."""
ROWS: Final = 50
HOURS: Final = {"1": "1 hour", "6": "6 hours", "24": "24 hours", "72": "3 days", "168": "7 days"}
_BY: Final[tuple[By, ...]] = get_args(By)
_SORTS: Final[tuple[Sort, ...]] = get_args(Sort)

Values = dict[str, Any]


class NotFound(Exception):
    """There is no such thing; the text says what to do."""


class Reading:
    """What pages show.

    Args:
        app: the Celery app on which TaskBridge is installed; None: the package's own.
        show_documents: whether the page of a record has its document.
    """

    def __init__(self, app: Celery | None, *, show_documents: bool) -> None:
        self._app = app
        self._show_documents = show_documents
        self._health: tuple[float, Health] | None = None
        self._failed: tuple[float, Exception] | None = None
        self._one_look = Lock()
        self._one_point = Lock()
        self._checks: tuple[float, list[Finding]] | None = None
        self._one_check = Lock()
        self._points: dict[str, deque[tuple[datetime, float, float]]] = {}
        """Of each pipeline: time, events and runs each second, as far as somebody looked on."""

    @property
    def runtime(self) -> Runtime:
        """The connections of this process, for a person who waits."""
        return runtime_of(self._app or own_app()).for_people

    @property
    def pipelines(self) -> Mapping[str, Pipeline]:
        """Those that this process declares."""
        declared = self.runtime.pipelines
        return {name: declared[name] for name in declared.names()}

    @property
    def answers(self) -> Answers:
        """The answers about this deployment."""
        runtime = self.runtime
        return Answers(runtime.engine, runtime.gate, self.pipelines, runtime.settings)

    def ask(self, values: Callable[[QueryParams], Values], asked: QueryParams) -> Values:
        """Return the values of a page, with those that each page has.

        Raises:
            TaskBridgeError: a server cannot be used, or what is asked for cannot be.
            NotFound: there is no such thing.
        """
        with translated_errors():
            return {
                "health": self._health_of(values),
                "pipelines": list(self.pipelines),
                "pipeline": asked.get("pipeline") or None,
                **values(asked),
            }

    def health(self) -> Health:
        """Return whether all is well; several pages share one look."""
        with self._one_look:
            if self._failed is not None and monotonic() - self._failed[0] < HEALTH_SECONDS:
                # Whoever waited for this look waits for no other.
                raise self._failed[1]
            if self._health is None or monotonic() - self._health[0] > HEALTH_SECONDS:
                try:
                    self._health = monotonic(), self.answers.health()
                except Exception as error:
                    self._failed = monotonic(), error
                    raise
                self._failed = None
            return self._health[1]

    def _health_of(self, values: Callable[[QueryParams], Values]) -> Health | None:
        """Return the health that a page has at its top; None: it is unknown, and the page is not about it."""
        if values == self.checks:
            # Checks say themselves which server is away. What was true a while ago may be true no more.
            is_new = self._health is not None and monotonic() - self._health[0] < FAILED_SECONDS
            return self.last_health if is_new else None
        if values in (self.now, self.tenant):
            return self.health()
        if self._failed is not None and monotonic() - self._failed[0] < FAILED_SECONDS:
            return None
        try:
            with translated_errors():
                return self.health()
        except Unavailable:
            return None

    @property
    def last_health(self) -> Health | None:
        """What the last look at the health of all has shown."""
        return self._health[1] if self._health else None

    def now(self, _: QueryParams) -> Values:
        """The first page: is it healthy, and what moves."""
        pulse = self.answers.pulse()
        shown = []
        for one in pulse.pipelines:
            points = self._seen(one, pulse.at)
            moved = len(points) >= FEWEST_POINTS and any(events or runs for _, events, runs in points)
            shown.append((one, charts.rates(points, POINTS, pulse.at) if moved else None))
        shown.sort(key=lambda one: -one[0].runners)
        # Nobody calls a pipeline idle whose records wait for a worker.
        health = self.health()
        red = {one.pipeline for one in health.findings if one.colour == "red"}
        waiting = set(self.pipelines) if None in red else red
        idle = [
            one.pipeline
            for one, chart in shown
            if not (one.runners or one.paused or one.circuit_open or one.events_rate or one.runs_rate)
            and one.pipeline not in waiting
        ]
        marks = {
            "is_overdue": is_overdue(health.overdue_seconds),
            "not_looked": nobody_looks(health.tail_seconds, self.runtime.settings.tail_interval),
        }
        return {"pulse": pulse, "shown": shown, "idle": idle, **marks}

    def _seen(self, one: PipelinePulse, at: datetime) -> list[tuple[datetime, float, float]]:
        """Add the rates of a pipeline at a time, and return those of the last minute."""
        with self._one_point:
            points = self._points.setdefault(one.pipeline, deque(maxlen=POINTS))
            if one.events_rate is not None and one.runs_rate is not None and (not points or points[-1][0] < at):
                points.append((at, one.events_rate, one.runs_rate))
            while points and points[0][0] < at - timedelta(seconds=POINTS):
                points.popleft()
            return list(points)

    def search(self, asked: QueryParams) -> Values:
        """Where is it: tenants, records, messages and webhooks by their name."""
        text = asked.get("q", "")[:200]
        found = Finds([])
        # A name may have space at its ends, and who pastes one often adds some.
        for one in dict.fromkeys((text, text.strip())):
            if one and "\0" not in one and not found:
                found = self.answers.find(one)
        return {"text": text, "found": found}

    def record(self, asked: QueryParams) -> Values:
        """What became of a record."""
        source = check_source_name(asked.get("source", ""))
        tenant = check_tenant(asked.get("tenant", ""))
        key = check_key(tenant, asked.get("key", ""))
        pipeline = self._pipeline(asked)
        story = self.answers.story(source, tenant, key, pipeline)
        if story is None:
            raise NotFound("there is no such record: it was never written, or it was pruned")
        document = None
        if self._show_documents:
            document = document_of(self.runtime.engine, source, tenant, key, LONGEST_DOCUMENT)
        return {"story": story, "document": document, "documents_shown": self._show_documents}

    def tenant(self, asked: QueryParams) -> Values:
        """Why does a tenant not run, and who has it."""
        pipeline, tenant = self._pipeline(asked), check_tenant(asked.get("tenant", ""))
        return {"tenant": self.answers.tenant(pipeline, tenant), "source": self.runtime.source_of(pipeline)}

    def check(self, pipeline: str, tenant: str) -> None:
        """Raise UnknownPipeline or InvalidName where there can be no such page; it asks no server."""
        check_tenant(tenant)
        self.runtime.pipelines[pipeline]

    def tenants(self, asked: QueryParams) -> Values:
        """The tenants of a pipeline."""
        pipeline = self._pipeline(asked)
        failing = asked.get("failing") == "1"
        sort = _one_of(_SORTS, asked.get("sort"), "name")
        after = asked.get("after", "")
        if after:
            check_tenant(after)
        lines = self.answers.tenants(pipeline, failing=failing, sort=sort, after=after, limit=ROWS)
        more = lines[-1].tenant if len(lines) == ROWS and sort == "name" else None
        found: Values = {
            "pipeline": pipeline,
            "lines": lines,
            "failing": failing,
            "sort": sort,
            "sorts": _SORTS,
            "more": more,
        }
        return found | {"most": MOST_OF_A_TENANT, "compared": MOST_SORTED, "left_out": self.answers.left_out()}

    def noisy(self, asked: QueryParams) -> Values:
        """Who is noisy."""
        by, hours = _one_of(_BY, asked.get("by"), "events"), _hours(asked)
        answers = self.answers
        noisy = answers.noisy(self._some_pipeline(asked), by=by, hours=float(hours), limit=ROWS)
        found = {"noisy": noisy, "by": by, "all_by": _BY, "hours": hours, "all_hours": HOURS}
        # The history has the runs of all pipelines.
        return found | {"left_out": None if answers.has_history else answers.left_out()}

    def failing(self, asked: QueryParams) -> Values:
        """What fails, since when."""
        pipeline, hours, answers = self._some_pipeline(asked), _hours(asked), self.answers
        groups = answers.failing(pipeline, limit=ROWS + 1)
        past = answers.failed(pipeline, hours=float(hours), limit=ROWS)
        found = {"groups": groups[:ROWS], "more": len(groups) > ROWS, "past": past, "at_once": AT_ONCE}
        return found | {"hours": hours, "all_hours": HOURS, "left_out": answers.left_out()}

    def saved(self, asked: QueryParams) -> Values:
        """What bursts saved."""
        pipeline = self._pipeline(asked)
        tenant = asked.get("tenant") or None
        if tenant is not None:
            check_tenant(tenant)
        answers = self.answers
        days = answers.saved(pipeline, days=7)
        bursts = answers.bursts(pipeline, tenant, limit=ROWS)
        return {
            "pipeline": pipeline,
            "only": tenant,
            "days": days,
            "bursts": bursts,
            "has_history": answers.has_history,
            "left_out": answers.left_out(),
        }

    def over_time(self, asked: QueryParams) -> Values:
        """What happened last night."""
        hours, answers, until = _hours(asked), self.answers, _time(asked, "until")
        end = until or datetime.now(UTC)
        minutes = answers.over_time(self._some_pipeline(asked), hours=float(hours), until=until)
        return {
            "minutes": minutes,
            "counts": charts.counts(minutes, float(hours), end),
            "delays": charts.delays(minutes, float(hours), end),
            "hours": hours,
            "all_hours": HOURS,
            "until": None if until is None else until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M"),
            "has_history": answers.has_history,
        }

    def runs(self, asked: QueryParams) -> Values:
        """The runs of a pipeline or a tenant, the last one first."""
        pipeline, tenant = self._some_pipeline(asked), asked.get("tenant") or None
        if tenant is not None:
            check_tenant(tenant)
            pipeline = self._pipeline(asked)
        failed, answers = asked.get("failed") == "1", self.answers
        runs = answers.runs(pipeline, tenant, failed=failed, before=_before(asked), limit=ROWS)
        more = runs[-1] if len(runs) == ROWS else None
        return {"runs": runs, "failed": failed, "only": tenant, "more": more, "has_history": answers.has_history}

    def audit(self, asked: QueryParams) -> Values:
        """Who did what."""
        before = asked.get("before", "")
        if before and not (before.isascii() and before.isdigit() and len(before) < 16):
            raise InvalidInput("`before` is no number of an action: open the audit's first page")
        actions = Audit(self.runtime.engine).last(ROWS, int(before) if before else None)
        return {"audited": actions, "more": actions[-1].id if len(actions) == ROWS else None}

    def checks(self, _: QueryParams) -> Values:
        """What `taskbridge doctor` finds. It waits a second for the workers' answers, so several share one look."""
        with self._one_check:
            if self._checks is None or monotonic() - self._checks[0] > CHECK_SECONDS:
                self._checks = monotonic(), examine(self.runtime)
            at, findings = self._checks
        return {"findings": findings, "worst": worst(findings), "seconds": monotonic() - at}

    def _pipeline(self, asked: QueryParams) -> str:
        """Return the pipeline that is asked for, else the first.

        Raises:
            UnknownPipeline: there is no such one.
        """
        declared = self.runtime.pipelines
        return declared[asked.get("pipeline") or declared.names()[0]].name

    def _some_pipeline(self, asked: QueryParams) -> str | None:
        return self._pipeline(asked) if asked.get("pipeline") else None


def _one_of(allowed: tuple[Any, ...], given: str | None, usual: Any) -> Any:
    return given if given in allowed else usual


def _hours(asked: QueryParams) -> str:
    return str(_one_of(tuple(HOURS), asked.get("hours"), "24"))


def _time(asked: QueryParams, name: str) -> datetime | None:
    """Return the time that a parameter gives; None: it is not there."""
    text = asked.get(name, "")
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text[:40])
    except ValueError:
        raise InvalidInput(f"`{name}` is no time: write it as 2026-01-31T08:00:00+00:00") from None
    if not FIRST_YEAR <= found.year < LAST_YEAR:
        raise InvalidInput(f"`{name}` is the time of no run: write it as 2026-01-31T08:00:00+00:00")
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _before(asked: QueryParams) -> Before | None:
    found = _time(asked, "before")
    if found is None:
        return None
    token = asked.get("run", "")
    if "\0" in token:
        raise InvalidInput("`run` is no token of a run: open the first page")
    return Before(found, token[:100])
