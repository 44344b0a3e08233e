"""A dashboard that is served, and requests to it as browsers and programs send them."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from taskbridge.process.runtime import runtime_of
from taskbridge.web import dashboard
from tests.deployment import Deployment
from tests.web.serving import declared, served

SAME_SITE = {"sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def declare(deployment: Deployment, *names: str) -> None:
    """Let this process know pipelines of which each reads the source of its name."""
    pipelines = declared(*(names or ("invoices",)))
    runtime_of(deployment.app).pipelines = pipelines
    for name in pipelines.names():
        runtime_of(deployment.app).register(pipelines[name])


class Visitor:
    """One browser: it keeps cookies, and sends forms as they stand on a page."""

    def __init__(self, url: str, **options: Any) -> None:
        self.client = httpx2.Client(base_url=url, timeout=30, **options)

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def get(self, path: str = "/", **parameters: str) -> httpx2.Response:
        return self.client.get(path, params=parameters or None)

    def form(self, page: str, action: str) -> dict[str, str]:
        """The hidden fields of the first form of a page that does `action`."""
        found = re.search(rf'<form method="post" action="[^"]*/do/{action}">(.*?)</form>', page, re.DOTALL)
        assert found, f"no form to {action}: {page}"
        fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', found[1])
        return {name: html.unescape(value) for name, value in fields}

    def send(self, action: str, form: dict[str, str], **headers: str) -> httpx2.Response:
        names = {name.replace("_", "-"): value for name, value in (SAME_SITE | headers).items()}
        return self.client.post(f"do/{action}", data=form, headers=names)

    def do(self, page: httpx2.Response, action: str, **more: str) -> httpx2.Response:
        """Send a form of a page, and open the page to which the answer leads."""
        answer = self.send(action, self.form(page.text, action) | more, referer=str(page.url))
        assert answer.status_code == 303, answer.text
        return self.client.get(answer.url.join(answer.headers["location"]))


@contextmanager
def visiting(deployment: Deployment, **options: Any) -> Iterator[Visitor]:
    """Serve the dashboard of a deployment, and visit it."""
    with served(dashboard(deployment.app, **options)) as url, Visitor(url) as visitor:
        yield visitor
