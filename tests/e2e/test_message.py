"""What the page on the message shows, pushed with LPUSH and without Celery, is what a worker runs."""

from __future__ import annotations

import base64
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.deployment import Deployment
from tests.docs.pages import blocks
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "message.md"
QUEUE = "taskbridge.first"


def shown() -> Any:
    """The message of the page, with ids of its own."""
    (text,) = [block.text for block in blocks(PAGE) if block.kind == "message"]
    for one in set(re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", text)):
        text = text.replace(one, str(uuid.uuid4()))
    return json.loads(text)


def fields() -> dict[str, bool]:
    """The fields of the page's table, and whether each is needed."""
    table = PAGE.read_text(encoding="utf-8").partition("<!-- fields -->")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `([\w.-]+)` \| (yes|no) \|", table, re.MULTILINE)
    return {name: needed == "yes" for name, needed in rows}


def names(message: dict[str, Any]) -> list[str]:
    """The fields of a message, as the table calls them."""
    return [
        name
        for top, value in message.items()
        for name in ([f"{top}.{below}" for below in value] if isinstance(value, dict) else [top])
    ]


def without(message: dict[str, Any], name: str) -> dict[str, Any]:
    top, _, below = name.partition(".")
    if below:
        del message[top][below]
    else:
        del message[top]
    return message


def push(deployment: Deployment, message: Any) -> None:
    with redis.Redis.from_url(deployment.settings.redis_url) as client:
        client.lpush(QUEUE, json.dumps(message))


def least() -> Any:
    """A message with what the page calls needed."""
    message = shown()
    for name, is_needed in fields().items():
        if not is_needed:
            without(message, name)
    return message


def called(message: Any, *arguments: Any, **by_name: Any) -> Any:
    """The message with another body, as the page has it."""
    return message | {"body": json.dumps([arguments, by_name, {}])}


def test_the_table_has_each_field_that_the_page_shows() -> None:
    assert sorted(fields()) == sorted(names(shown()))
    assert sorted(name for name, is_needed in fields().items() if is_needed) == sorted(names(least()))


def encoded(message: Any) -> Any:
    message["body"] = base64.b64encode(message["body"].encode()).decode()
    message["properties"]["body_encoding"] = "base64"
    return message


def test_a_worker_runs_what_the_page_shows(deployment: Deployment) -> None:
    messages = [
        ("acme", shown()),
        ("acme", least()),
        ("acme", encoded(shown())),
        ("bolt", called(least(), "bolt")),
        ("Müller & Söhne", called(shown(), "Müller & Söhne", "invoices")),
        ("cord", called(least(), tenant="cord", pipeline="invoices")),
    ]
    # Nothing but the message lets a run begin: workers look for records once a minute.
    with deployment.worker(TASKBRIDGE_TAIL_INTERVAL="60", TASKBRIDGE_BASE_INTERVAL="60") as worker:
        wait_until(lambda: deployment.rows("SELECT FROM taskbridge.tails WHERE kind = 'tail'"), "the first look")
        for number, (tenant, message) in enumerate(messages):
            deployment.save(tenant, str(number), notify=False)
            push(deployment, message)
            expected = [(whose, str(at)) for at, (whose, _) in enumerate(messages[: number + 1])]
            wait_until(lambda: deployment.deliveries() == expected, f"message {number} ran: {worker.text()}")  # noqa: B023 - it is called at once
            deployment.wait_until_idle()
        assert worker.text().count("Task taskbridge.notify_event[") >= len(messages)
        assert deployment.redis.llen(QUEUE) == 0
        assert "ERROR" not in worker.text()
        # Other messages do what the page says.
        another = shown()
        another["headers"]["task"] = "no.such.task"
        for message in (another, called(shown(), ""), called(shown(), "acme", "no-such")):
            push(deployment, message)
        for text in (
            "unregistered task of type 'no.such.task'",
            "the tenant is empty",
            "no pipeline is called 'no-such'",
        ):
            wait_until(lambda: text in worker.text(), text)  # noqa: B023 - it is called at once
