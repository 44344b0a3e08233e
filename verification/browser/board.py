"""The dashboard as a person sees it in a browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from taskbridge import LatencyNeutral
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.handlers.journal import journal
from taskbridge.process.runtime import runtime_of
from taskbridge.store import record
from taskbridge.web import dashboard
from tests.deployment import Deployment
from tests.waiting import TIME_FACTOR
from tests.web.serving import served

MODULE: Final = "tests.pipelines_of_states"
"""What the workers run."""
WIDE: Final = {"width": 1180, "height": 760}
NARROW: Final = {"width": 360, "height": 740}
LARGEST_PICTURE: Final = 150_000
SECONDS: Final = 20 * TIME_FACTOR


def declared() -> Pipelines:
    """As many pipelines as the module declares, without its handler."""
    pipelines = Pipelines()
    for name in ("orders", "broken", "calls", "narrow"):
        pipelines.declare(Pipeline(name, journal, LatencyNeutral(), 100))
    return pipelines


class Board:
    """One page of a browser, and the deployment that it shows.

    What the browser complains about, and each request that goes elsewhere, is in `complaints`.
    """

    def __init__(self, deployment: Deployment, browser: Any, url: str, pictures: Path) -> None:
        self.deployment = deployment
        self.url = url
        self.browser = browser
        self.complaints: list[str] = []
        self._pictures = pictures
        self._contexts: list[Any] = []
        self.page = self.new_page()

    @classmethod
    @contextmanager
    def opened(cls, deployment: Deployment, browser: Any, pictures: Path) -> Iterator[Board]:
        """Serve the dashboard with all it can do, and open it."""
        runtime = runtime_of(deployment.app)
        runtime.pipelines = declared()
        for name in runtime.pipelines.names():
            runtime.register(runtime.pipelines[name])
        with served(dashboard(deployment.app, actions=True, show_documents=True)) as url:
            board = cls(deployment, browser, url, pictures)
            try:
                yield board
            finally:
                for context in board._contexts:
                    context.close()
        assert board.complaints == []

    def new_page(self, **options: Any) -> Any:
        """Open a page as another person would."""
        context = self.browser.new_context(**({"viewport": WIDE, "color_scheme": "light"} | options))
        context.set_default_timeout(SECONDS * 1000)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: self.complaints.append(f"a dialog: {dialog.message}"))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith(self.url) else self.complaints.append(f"asked {asked.url}"),
        )
        return page

    def open(self, path: str = "", **parameters: str) -> Any:
        """Open a path in the page."""
        self.page.goto(f"{self.url}/{path}{'?' if parameters else ''}{urlencode(parameters)}")
        return self.page

    def wait_for(self, pattern: str) -> None:
        """Wait until the page says something, without loading it again."""
        self.page.wait_for_function("pattern => document.body.innerText.match(new RegExp(pattern))", arg=pattern)

    def text(self) -> str:
        return re.sub(r"\s+", " ", self.page.locator("body").inner_text())

    def picture(self, name: str) -> None:
        """Write what the page shows, as docs have it."""
        path = self._pictures / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=path)
        assert path.stat().st_size < LARGEST_PICTURE, name

    def save(self, pipeline: str, tenant: str, *keys: str, **document: Any) -> None:
        """Commit records one by one, each with its event, as webhooks would."""
        for key in keys:
            record(self.deployment.engine, pipeline, tenant, key, document)
            self.deployment.gate.notify(pipeline, tenant, LatencyNeutral().spacing)
