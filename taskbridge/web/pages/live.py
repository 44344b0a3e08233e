"""What is sent to pages while they are open: one look a second for all viewers."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from taskbridge.common.texts import error_line, printable

__all__ = ["LOOK_SECONDS", "MOST_TENANTS", "MOST_VIEWERS", "STREAM_SECONDS", "Live", "Subject"]

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
SHARE: Final = 0.25
"""Looks take at most this share of the time: where they are slow they become fewer."""
LONGEST_REST: Final = 15.0
MOST_VIEWERS: Final = 200
MOST_TENANTS: Final = 15
"""Tenants that are looked at at once, beside the first page."""
STREAM_SECONDS: Final = 30.0
"""A stream ends after this time, and the browser opens the next: a server that stops waits no longer for it."""
SILENT_SECONDS: Final = 10.0
"""After so long a time without news a comment is sent, so that a viewer who is gone is noticed."""

Subject: TypeAlias = "tuple[str, str] | None"
"""Pipeline and tenant of a tenant's page; None: the first page."""
Look: TypeAlias = Callable[[Subject], Awaitable[dict[str, str]]]


@dataclass(slots=True)
class _News:
    """The last look at a subject. A viewer that reads slowly skips looks, and holds nobody up."""

    viewers: int = 0
    text: str = ""
    number: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, text: str) -> None:
        if text != self.text:
            self.text, self.number = text, self.number + 1
            changed, self.changed = self.changed, asyncio.Event()
            changed.set()


class Live:
    """The looks of one event loop. There are none while nobody has a page open.

    Args:
        look: returns what is sent about a subject.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._news: dict[Subject, _News] = {}
        self._task: asyncio.Task[None] | None = None
        self._ended = False
        self.looks = 0
        """How many looks there were."""

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return sum(one.viewers for one in self._news.values())

    def has_room(self, subject: Subject) -> bool:
        """Whether one more may look on."""
        if self.viewers >= MOST_VIEWERS:
            return False
        return subject is None or subject in self._news or sum(map(bool, self._news)) < MOST_TENANTS

    def end(self) -> None:
        """End the streams that are open: the server stops."""
        self._ended = True
        for news in self._news.values():
            news.changed.set()

    async def stream(self, subject: Subject) -> AsyncIterator[str]:
        """Yield server-sent events: each look at the subject that brings something new."""
        news = self._news.setdefault(subject, _News())
        news.viewers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go_on())
        ends, seen = time.monotonic() + STREAM_SECONDS, 0
        try:
            yield "retry: 500\n\n"
            while not self._ended and (left := ends - time.monotonic()) > 0:
                changed = news.changed
                if news.number != seen:
                    seen = news.number
                    yield f"event: look\ndata: {news.text}\n\n"
                    continue
                try:
                    async with asyncio.timeout(min(left, SILENT_SECONDS)):
                        await changed.wait()
                except TimeoutError:
                    yield ":\n\n"
        finally:
            news.viewers -= 1
            if not news.viewers:
                self._news.pop(subject, None)

    async def _go_on(self) -> None:
        while self._news:
            began = time.monotonic()
            for subject, news in list(self._news.items()):
                try:
                    # One line: a line end would end the field.
                    news.put(json.dumps(await self._look(subject)))
                except Exception as error:
                    log.error("a look of the dashboard failed: %s", printable(error_line(error)))
            self.looks += 1
            took = time.monotonic() - began
            await asyncio.sleep(min(LONGEST_REST, max(LOOK_SECONDS - took, took / SHARE - took)))
