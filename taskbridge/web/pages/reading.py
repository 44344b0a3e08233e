"""The pages: what each asks, and with which values it is shown. All of it runs in threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from time import monotonic
from typing import Any, Final, get_args

from celery import Celery
from starlette.datastructures import QueryParams

from taskbridge.common.names import check_key, check_source_name, check_tenant
from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import InvalidInput, Unavailable
from taskbridge.observing import health as healths
from taskbridge.observing import history, inspect, record, status
from taskbridge.observing.context import Context
from taskbridge.observing.types import By, Found, Health, Sort
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.web.endpoint import own_app
from taskbridge.web.pages.acting import AT_ONCE
from taskbridge.web.pages.charts import chart

__all__ = ["HOURS", "NotFound", "Reading"]

LONGEST_DOCUMENT: Final = 20_000
"""How many characters of a document are shown."""
HEALTH_SECONDS: Final = 1.0
"""How long the health of the deployment is shown again."""
FAILED_SECONDS: Final = 15.0
"""How long, after it could not be read, pages that are not about it do not wait for it."""
FIRST_YEAR, LAST_YEAR = 2000, 9999
ROWS: Final = 50
HOURS: Final = {"1": "1 hour", "6": "6 hours", "24": "24 hours", "72": "3 days", "168": "7 days"}
SAVED_DAYS: Final = 7
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

    @property
    def runtime(self) -> Runtime:
        """The connections of this process, for a person who waits."""
        return runtime_of(self._app or own_app()).for_people

    @property
    def context(self) -> Context:
        """What the answers about this deployment are made from."""
        return Context.of(self.runtime)

    def ask(self, values: Callable[[QueryParams], Values], asked: QueryParams) -> Values:
        """Return the values of a page, with those that each page has.

        Raises:
            TaskBridgeError: a server cannot be used, or what is asked for cannot be.
            NotFound: there is no such thing.
        """
        with translated_errors():
            return {
                "health": self._health_of(values),
                "pipelines": self.context.names(),
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
                    self._health = monotonic(), healths.health(self.context)
                except Exception as error:
                    self._failed = monotonic(), error
                    raise
                self._failed = None
            return self._health[1]

    def _health_of(self, values: Callable[[QueryParams], Values]) -> Health | None:
        """Return the health that a page has at its top; None: it is unknown, and the page is not about it."""
        if values in (self.now, self.tenant, self.now_live):
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
        """The health that was read last."""
        return self._health[1] if self._health else None

    def now_live(self, _: QueryParams) -> Values:
        """What moves on the first page."""
        health = self.health()
        # A pipeline whose records wait for a worker is not idle.
        red = {one.pipeline for one in health.findings if one.grave}
        idle = [
            one.pipeline
            for one in health.pipelines
            if not (one.runners or one.paused or one.survey.circuit.open or {one.pipeline, None} & red)
        ]
        return {"shown": sorted(health.pipelines, key=lambda one: -one.runners), "idle": idle, "most_active": ROWS}

    def now(self, asked: QueryParams) -> Values:
        """The first page: is it healthy, what moves, what happened on the last day, and what was saved."""
        hours, context = _hours(asked), self.context
        pipeline = self._some_pipeline(asked)
        sums = history.over_time(context, pipeline, hours=float(hours))
        values = {
            "sums": sums,
            "chart": chart(sums, float(hours), datetime.now(UTC)),
            "saved": history.saved(context, days=SAVED_DAYS),
            "saved_days": SAVED_DAYS,
            "hours": hours,
            "all_hours": HOURS,
            "has_history": bool(sums) or context.has_history,
        }
        return self.now_live(asked) | values

    def tenants(self, asked: QueryParams) -> Values:
        """The tenants of a pipeline: as they are now, or the noisiest of the last hours."""
        pipeline, context, hours = self._pipeline(asked), self.context, _hours(asked)
        by, failing = asked.get("by"), asked.get("failing") == "1"
        found: Values = {"pipeline": pipeline, "failing": failing, "hours": hours, "all_hours": HOURS, "all_by": _BY}
        found |= {"sorts": _SORTS, "more": None, "most": status.MOST_OF_A_TENANT, "compared": status.MOST_SORTED}
        found["left_out"] = healths.left_out(context)
        if by in _BY:
            noisy = history.noisy(context, pipeline, by=by, hours=float(hours), limit=ROWS)
            return found | {"noisy": noisy, "by": by, "lines": [], "sort": None}
        sort, after = _one_of(_SORTS, asked.get("sort"), "name"), asked.get("after", "")
        if after:
            check_tenant(after)
        lines = status.tenants(context, pipeline, failing=failing, sort=sort, after=after, limit=ROWS + 1)
        more = lines[ROWS - 1].tenant if len(lines) > ROWS and sort == "name" else None
        return found | {"noisy": None, "by": None, "lines": lines[:ROWS], "sort": sort, "more": more}

    def tenant(self, asked: QueryParams) -> Values:
        """Why is a tenant not running, and which run has it."""
        pipeline, tenant = self._pipeline(asked), check_tenant(asked.get("tenant", ""))
        found = inspect.tenant(self.context, pipeline, tenant)
        return {"tenant": found, "source": self.runtime.source_of(pipeline)}

    def check(self, pipeline: str, tenant: str) -> None:
        """Raise UnknownPipeline or InvalidName if there can be no such page; it asks no server."""
        check_tenant(tenant)
        self.runtime.pipelines[pipeline]

    def record(self, asked: QueryParams) -> Values:
        """Where is a record, or what became of it: a search, unless its source, tenant and key are given."""
        if not asked.get("key"):
            return self._search(asked.get("q", "")[:200])
        source, tenant = check_source_name(asked.get("source", "")), check_tenant(asked.get("tenant", ""))
        key, pipeline, context = check_key(tenant, asked["key"]), self._pipeline(asked), self.context
        story = record.story(context, source, tenant, key, pipeline)
        if story is None:
            raise NotFound("there is no such record: it was never written, or it was pruned")
        document = None
        if self._show_documents:
            document = record.document(context, source, tenant, key, LONGEST_DOCUMENT)
        return {"story": story, "document": document, "documents_shown": self._show_documents}

    def _search(self, text: str) -> Values:
        found, note = list[Found](), None
        # A name may have space at its ends, and pasted text often has some that is not part of it.
        for one in dict.fromkeys((text, text.strip())):
            if one and "\0" not in one and not found:
                found, note = record.find(self.context, one)
        return {"story": None, "text": text, "found": found, "note": note, "most": record.MOST}

    def failing(self, asked: QueryParams) -> Values:
        """What fails, since when, and what is in quarantine."""
        pipeline, hours, context = self._some_pipeline(asked), _hours(asked), self.context
        groups = status.failing(context, pipeline, limit=ROWS + 1)
        kept = [one for name in context.names(pipeline) for one in status.quarantined(context, name, limit=ROWS + 1)]
        return {
            "groups": groups[:ROWS],
            "more": len(groups) > ROWS,
            "kept": kept[:ROWS],
            "sources": {name: one.source for name, one in context.pipelines.items()},
            "more_kept": len(kept) > ROWS,
            "past": history.failed(context, pipeline, hours=float(hours), limit=ROWS),
            "at_once": AT_ONCE,
            "hours": hours,
            "all_hours": HOURS,
            "left_out": healths.left_out(context),
        }

    def runs(self, asked: QueryParams) -> Values:
        """The runs of all pipelines, of one, or of a tenant, the last one first."""
        pipeline, tenant = self._some_pipeline(asked), asked.get("tenant") or None
        bursts, context = [], self.context
        before = _before(asked)
        if tenant is not None:
            check_tenant(tenant)
            pipeline = self._pipeline(asked)
            bursts = history.bursts(context, pipeline, tenant) if before is None else []
        failed = asked.get("failed") == "1"
        runs = history.runs(context, pipeline, tenant, failed=failed, before=before, limit=ROWS + 1)
        return {
            "runs": runs[:ROWS],
            "more": runs[ROWS - 1] if len(runs) > ROWS else None,
            "bursts": bursts,
            "failed": failed,
            "only": tenant,
            "has_history": bool(runs) or context.has_history,
        }

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


def _before(asked: QueryParams) -> history.Before | None:
    found = _time(asked, "before")
    if found is None:
        return None
    token = asked.get("run", "")
    if "\0" in token:
        raise InvalidInput("`run` is no token of a run: open the first page")
    return history.Before(found, token[:100])
