"""The package alone is a producer and a worker; whatever needs an extra names it if it is not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from taskbridge.common.libraries import EXTRAS
from tests.deployment import ENDS_WITHIN, ROOT, WORKER_STARTS_WITHIN, Deployment
from tests.ending import ended
from tests.waiting import wait_until

pytestmark = pytest.mark.e2e

ALL = ("django", "opentelemetry", *EXTRAS)
WORKER = ("celery.__main__", "-A", "taskbridge", "worker", "-n", "bare@test", "-c", "1")
PRODUCE = "import taskbridge; taskbridge.record_invoice('acme', '1', {}); taskbridge.notify('acme')"


def without(modules: tuple[str, ...], code: str) -> list[str]:
    """Return the start of a command for an interpreter that cannot import some modules."""
    return [sys.executable, "-c", f"import sys; sys.modules.update(dict.fromkeys({modules!r})); {code}"]


def program(modules: tuple[str, ...], name: str, *arguments: str) -> list[str]:
    return [*without(modules, f"from {name} import main; main()"), *arguments]


def test_a_producer_and_a_worker_need_no_extra(deployment: Deployment) -> None:
    log = deployment.logs / "bare.log"
    with (
        log.open("wb") as out,
        subprocess.Popen(
            program(ALL, *WORKER), env=deployment.environment(), cwd=ROOT, stdout=out, stderr=out
        ) as worker,
    ):
        try:
            produced = ended(without(ALL, PRODUCE), deployment.environment())
            assert (produced.returncode, produced.stderr) == (0, "")
            delivered = [["1"]]
            wait_until(lambda: deployment.delivered("acme") == delivered, "the record is handled", WORKER_STARTS_WITHIN)
        finally:
            worker.terminate()
            worker.wait(ENDS_WITHIN)


@pytest.mark.parametrize(("missing", "command"), [("rich", "status"), ("psutil", "up"), ("uvicorn", "serve")])
def test_a_command_names_the_extra_that_it_needs(deployment: Deployment, missing: str, command: str) -> None:
    said = ended(program((missing,), "taskbridge.cli.main", command), deployment.environment())
    assert said.returncode == 1
    assert said.stderr == (
        f"taskbridge: {missing}, which the extra '{EXTRAS[missing]}' of celery-taskbridge provides, is not installed: "
        f"run `pip install 'celery-taskbridge[{EXTRAS[missing]}]'`, or in a checkout "
        f"`pip install '.[{EXTRAS[missing]}]'`\n"
    )


def test_a_command_without_servers_asks_for_urls_and_not_for_an_extra(
    deployment: Deployment,
) -> None:
    none = {"TASKBRIDGE_POSTGRES_URL": "", "TASKBRIDGE_REDIS_URL": ""}
    said = ended(program(("psutil",), "taskbridge.cli.main", "status"), deployment.environment(**none))
    assert said.returncode == 1
    assert said.stderr.startswith("taskbridge: TASKBRIDGE_POSTGRES_URL and TASKBRIDGE_REDIS_URL are not set")


def test_a_producer_without_libpq_is_told_what_to_install(deployment: Deployment) -> None:
    # As psycopg fails if it finds neither a wheel's libpq nor the system's.
    code = f"import ctypes.util; ctypes.util.find_library = lambda _: None; {PRODUCE}"
    said = ended(without(("psycopg_c", "psycopg_binary"), code), deployment.environment())
    assert "psycopg finds no libpq" in said.stderr
    assert "`pip install 'psycopg[binary]'`" in said.stderr
