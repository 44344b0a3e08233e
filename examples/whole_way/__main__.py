"""Start everything, send webhooks, wait until everything is delivered, and check the result."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import click
import httpcore2

from examples.whole_way.downstream import Downstream, serve_downstream, takes
from taskbridge.embedded import Guarded, running
from taskbridge.web import StandardWebhooks

ROOT = Path(__file__).resolve().parents[2]
TASKBRIDGE = (sys.executable, "-c", "from taskbridge.cli.main import main; main()")
SECRET = "whsec_ZnJvbSB0aGUgd2ViaG9vayB0byB0aGUgZW5kcG9pbnQ="  # noqa: S105 - of an example
VERSIONS = 5
WITHIN = 120.0
"""How many seconds to wait for each step."""

Order = dict[str, Any]
T = TypeVar("T")


@click.command()
@click.option("--orders", "count", type=click.IntRange(1), default=200, show_default=True, help="How many orders.")
def main(count: int) -> None:
    """Send webhooks about orders of five customers, and check that everything arrives.

    Each order changes four times, so there are five webhooks about it. The exit status is 1 if anything is missing.
    """
    orders = [_order(number, version) for number in range(count) for version in range(1, VERSIONS + 1)]
    random.Random(1).shuffle(orders)  # noqa: S311 - no secret; webhooks arrive in any order
    with TemporaryDirectory(prefix="taskbridge-") as name, serve_downstream() as downstream:
        folder = Path(name)
        folder.chmod(0o755)  # if root runs this, Postgres runs as another user
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TASKBRIDGE_")},
            "TASKBRIDGE_DATA_DIR": str(folder),
            "TASKBRIDGE_PIPELINES": "examples.whole_way.shop",
            "SHOP_SECRET": SECRET,
            "DOWNSTREAM_URL": downstream.url,
            "DOWNSTREAM_SECRET": SECRET,
        }
        with _started(folder, environment, "up"):
            _wait(lambda: running(folder), "Postgres and Redis run")
            with _started(folder, environment, "serve", "examples.whole_way.shop:app", "--port", "0") as log:
                place = _wait(lambda: re.search(r"running on (http://\S+)", log.read_text()), "the receiver listens")
                tries = _send(f"{place[1]}/orders", orders)
                _wait(lambda: _is_done(_status(environment), count), "all orders are delivered or in quarantine")
                problems = _account(orders, tries, _status(environment), downstream)
    if problems:
        raise click.ClickException(f"the account does not add up: {'; '.join(problems)}")
    click.echo("The account adds up.")


def _order(number: int, version: int) -> Order:
    """Return an order; the downstream rejects some of them."""
    return {
        "customer": f"customer-{number % 5}",
        "order": f"order-{number}",
        "version": version,
        "item": "" if number % 40 == 5 else "bicycle",
        "amount": 0 if number % 11 == 3 else version,
    }


def _send(url: str, orders: list[Order]) -> list[int]:
    """Send a webhook for each order, and retry until the response is 2xx. Return the number of attempts of each."""
    scheme = StandardWebhooks(SECRET)

    def send(order: Order) -> int:
        body = json.dumps(order).encode()
        deadline, tries = time.monotonic() + WITHIN, 0
        while time.monotonic() < deadline:
            tries += 1
            signed = scheme.sign(f"{order['order']}-{order['version']}", body, time.time())
            if 200 <= pool.request("POST", url, headers=[*signed.items()], content=body).status < 300:
                return tries
            time.sleep(0.2)
        raise click.ClickException(f"the receiver does not accept {order['order']}")

    with httpcore2.ConnectionPool() as pool, ThreadPoolExecutor(8) as threads:
        return list(threads.map(send, orders))


def _account(orders: list[Order], tries: list[int], tenants: list[dict[str, Any]], downstream: Downstream) -> list[str]:
    """Print the result; return what is wrong with it."""
    last = {(one["customer"], one["order"]): one for one in orders if one["version"] == VERSIONS}
    runs, quarantined = (sum(one[what] for one in tenants) for what in ("runs", "quarantined"))
    answers = ", ".join(f"{count:,} with {status}" for status, count in sorted(downstream.answers.items()))
    click.echo(
        f"{len(orders):,} webhooks sent, {len(tries):,} answered with 2xx, {sum(tries) - len(tries):,} sent again"
    )
    click.echo(f"{runs:,} runs of {len(tenants)} customers")
    click.echo(f"{downstream.answers.total():,} requests downstream, answered {answers}")
    click.echo(f"{len(downstream.versions):,} of {len(last):,} orders delivered, {quarantined:,} in quarantine")
    wanted = {place: VERSIONS for place, one in last.items() if takes(one)}
    found = {
        "a webhook was not answered with 2xx": len(tries) != len(orders),
        "there are as many runs as webhooks": runs >= len(orders),
        "the downstream does not have the last version of every valid order": downstream.versions != wanted,
        "an invalid order is not in quarantine": quarantined != len(last) - len(wanted),
    }
    return [what for what, is_so in found.items() if is_so]


def _status(environment: dict[str, str]) -> list[dict[str, Any]]:
    """Return the state of each customer."""
    done = subprocess.run([*TASKBRIDGE, "status", "--json"], env=environment, cwd=ROOT, capture_output=True, check=True)
    return list(json.loads(done.stdout)["pipelines"]["orders"]["tenants"].values())


def _is_done(tenants: list[dict[str, Any]], count: int) -> bool:
    return sum(one["handled"] + one["quarantined"] for one in tenants) == count and not any(
        one["pending"] for one in tenants
    )


@contextmanager
def _started(folder: Path, environment: dict[str, str], command: str, *arguments: str) -> Iterator[Path]:
    """Run a `taskbridge` command that ends with this program; yield its log file."""
    log = folder / f"{command}.log"
    with (
        log.open("wb") as output,
        Guarded([*TASKBRIDGE, command, *arguments], output=output, environment=environment, directory=ROOT),
    ):
        try:
            yield log
        except click.ClickException:
            click.echo(
                f"The last output of `taskbridge {command}`:\n{log.read_text(errors='replace')[-2_000:]}", err=True
            )
            raise


def _wait(found: Callable[[], T | None], what: str) -> T:
    """Wait for a result that is not None or False, and return it."""
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        if there := found():
            return there
        time.sleep(0.1)
    raise click.ClickException(f"not within {WITHIN:g} s: {what}")


if __name__ == "__main__":
    main()
