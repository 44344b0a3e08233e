"""Read the values of each page from `taskbridge.observe`. Everything here runs in threads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, get_args

from celery import Celery
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException

from taskbridge.common.names import check_key, check_source_name, check_tenant
from taskbridge.common.server_errors import translated_errors
from taskbridge.errors import InvalidInput, Unavailable
from taskbridge.observe import health as healths
from taskbridge.observe import history, inspect, record, status
from taskbridge.observe.context import Context
from taskbridge.observe.history import By
from taskbridge.observe.status import Sort
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.web.endpoint import own_app
from taskbridge.web.pages.acting import AT_ONCE

__all__ = ["Reading"]

LONGEST_DOCUMENT: Final = 20_000
"""How many characters of a document are shown."""
LONGEST_SEARCH: Final = 200
ROWS: Final = 50
HOURS: Final = 24
"""How far back the pages about the past look."""
NOISY: Final = {f"{by} in {HOURS} hours": by for by in get_args(By)}
"""Orders of tenants by their load, and what is compared."""
FIRST_YEAR, LAST_YEAR = 2000, 9999

Values = dict[str, Any]
Read = Callable[[QueryParams], Values]


class Reading:
    """Reads the values of pages.

    Args:
        app: the Celery app on which TaskBridge is installed; None: the package's own.
        show_documents: whether the page of a record shows its document.
    """

    def __init__(self, app: Celery | None, *, show_documents: bool) -> None:
        self._app = app
        self._show_documents = show_documents

    @property
    def runtime(self) -> Runtime:
        """The connections of this process."""
        return runtime_of(self._app or own_app())

    @property
    def context(self) -> Context:
        """The deployment that answers are about."""
        return Context.of(self.runtime)

    def values(self, read: Read, query: QueryParams) -> Values:
        """Return the values of a page, including those that every page has.

        Raises:
            TaskBridgeError: a server is unavailable, or the query is invalid.
            HTTPException: what the query asks for does not exist.
        """
        with translated_errors():
            values = {
                "pipelines": self.context.names(),
                "pipeline": query.get("pipeline") or None,
                **read(query),
            }
        if "health" not in values:
            values["health"] = self._health()
        return values

    def _health(self) -> healths.Health | None:
        """Return the health; None: a server is unavailable, which the page itself may not need."""
        try:
            with translated_errors():
                return healths.health(self.context)
        except Unavailable:
            return None

    def now(self, query: QueryParams) -> Values:
        """The first page: health, active tenants, the last day, and savings."""
        context = self.context
        health = healths.health(context)
        sums = history.over_time(context, self._pipeline_or_all(query), hours=HOURS)
        return {
            "health": health,
            "active": {
                one.pipeline: status.active(context, one.pipeline, one.survey.tenants[:ROWS], paused=one.is_paused)
                for one in health.pipelines
            },
            "queued": context.queued(one.pipeline for one in health.pipelines),
            "sums": sums,
            "since": datetime.now(UTC) - timedelta(hours=HOURS),
            "most": max((max(one.events, one.runs) for one in sums), default=0),
            "saved": history.saved(context),
        }

    def tenants(self, query: QueryParams) -> Values:
        """The tenants of a pipeline: their current state, or the noisiest of the last hours."""
        pipeline, context = self._pipeline(query), self.context
        sorts = (*get_args(Sort), *NOISY)
        sort: Any = query.get("sort") if query.get("sort") in sorts else "name"
        failing, after = query.get("failing") == "1", query.get("after", "")
        noisy, tenants = None, []
        if sort in NOISY:
            noisy = history.noisy(context, pipeline, by=NOISY[sort], hours=HOURS, limit=ROWS)
        else:
            after = after and check_tenant(after)
            tenants = status.tenants(context, pipeline, failing=failing, sort=sort, after=after, limit=ROWS + 1)
        return {
            "pipeline": pipeline,
            "noisy": noisy,
            "tenants": tenants[:ROWS],
            "next": tenants[ROWS - 1].tenant if len(tenants) > ROWS and sort == "name" else None,
            "sort": sort,
            "sorts": sorts,
            "failing": failing,
            "most": status.MOST_OF_A_TENANT,
            "compared": status.MOST_SORTED,
            "left_out": healths.left_out(context),
        }

    def tenant(self, query: QueryParams) -> Values:
        """Why a tenant is not running, or which run it has."""
        pipeline, tenant = self._pipeline(query), check_tenant(query.get("tenant", ""))
        return {
            # First, because it needs both servers, and a tenant is also shown without its runner.
            "health": healths.health(self.context),
            "tenant": inspect.tenant(self.context, pipeline, tenant),
            "source": self.runtime.source_of(pipeline),
        }

    def record(self, query: QueryParams) -> Values:
        """The story of a record, or a search if it is not identified by source, tenant and key."""
        if not query.get("key"):
            text = query.get("q", "").replace("\0", "").strip()[:LONGEST_SEARCH]
            found, note = record.find(self.context, text)
            return {"story": None, "text": text, "found": found, "note": note, "most": record.MOST}
        source, tenant = check_source_name(query.get("source", "")), check_tenant(query.get("tenant", ""))
        key, pipeline, context = check_key(tenant, query["key"]), self._pipeline(query), self.context
        story = record.story(context, source, tenant, key, pipeline)
        if story is None:
            raise HTTPException(404, "there is no such record: it was never written, or has been pruned")
        document = None
        if self._show_documents:
            document = record.document(context, source, tenant, key, LONGEST_DOCUMENT)
        return {"story": story, "document": document, "show_documents": self._show_documents}

    def failing(self, query: QueryParams) -> Values:
        """Current failures and the quarantine."""
        pipeline, context = self._pipeline_or_all(query), self.context
        groups = status.failing(context, pipeline, limit=ROWS + 1)
        kept = [one for name in context.names(pipeline) for one in status.quarantined(context, name, limit=ROWS + 1)]
        return {
            "groups": groups[:ROWS],
            "more": len(groups) > ROWS,
            "kept": kept[:ROWS],
            "more_kept": len(kept) > ROWS,
            "sources": {name: one.source for name, one in context.pipelines.items()},
            "past": history.failed(context, pipeline, hours=HOURS, limit=ROWS),
            "at_once": AT_ONCE,
            "left_out": healths.left_out(context),
        }

    def runs(self, query: QueryParams) -> Values:
        """The runs of all pipelines, of a pipeline, or of a tenant, the last one first."""
        context, before, failed = self.context, _before(query), query.get("failed") == "1"
        pipeline, tenant = self._pipeline_or_all(query), query.get("tenant") or None
        if tenant is not None:
            pipeline, tenant = self._pipeline(query), check_tenant(tenant)
        runs = history.runs(context, pipeline, tenant, failed=failed, before=before, limit=ROWS + 1)
        return {
            "runs": runs[:ROWS],
            "more": runs[ROWS - 1] if len(runs) > ROWS else None,
            "failed": failed,
            "only": tenant,
        }

    def _pipeline(self, query: QueryParams) -> str:
        """Return the pipeline of a query, by default the first one.

        Raises:
            UnknownPipeline: there is no such pipeline.
        """
        declared = self.runtime.pipelines
        return declared[query.get("pipeline") or declared.names()[0]].name

    def _pipeline_or_all(self, query: QueryParams) -> str | None:
        return self._pipeline(query) if query.get("pipeline") else None


def _before(query: QueryParams) -> history.Before | None:
    """Return where a page of runs begins, as given by the link to it."""
    text, token = query.get("before", ""), query.get("run", "")
    if not text:
        return None
    try:
        at = datetime.fromisoformat(text[:40])
    except ValueError:
        at = None
    if at is None or not FIRST_YEAR <= at.year < LAST_YEAR or "\0" in token:
        raise InvalidInput("`before` or `run` is invalid: use a time such as 2026-01-31T08:00:00+00:00 and a token")
    return history.Before(at if at.tzinfo else at.replace(tzinfo=UTC), token[:100])
