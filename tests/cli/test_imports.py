"""A command loads what it needs: help and version nothing but click, a look the drivers of the two servers."""

from __future__ import annotations

import pkgutil
from pathlib import Path

import pytest
from sqlalchemy import Engine

import taskbridge
import taskbridge.gate
import taskbridge.store
from taskbridge.store import record
from tests.cli.program import MAIN, ROOT, Program
from tests.cli.scenes import count
from tests.cli.test_bad_input import assert_one_clear_line

SERVERS = {"celery", "kombu", "redis", "sqlalchemy", "psycopg"}
SLOW = {
    "alembic",
    "prometheus_client",
    "benchmarks",
    "taskbridge.embedded",
    "rich.progress",
    "starlette",
    "uvicorn",
}


def loaded(program: Program, code: str, **variables: str) -> set[str]:
    """Run code in a process of its own and return the modules that it has at its end."""
    tail = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules, file=sys.stderr)); "
    ended = program.python("-c", tail + code, **variables)
    lines = [line for line in ended.stderr.splitlines() if line.startswith("LOADED")]
    assert lines, ended.stderr
    return set(lines[0].split())


HELP_OF_ALL = """
import contextlib, sys
from taskbridge.cli.main import cli, main
for arguments in (["--version"], ["--help"], *([command, "--help"] for command in cli.commands)):
    sys.argv[1:] = arguments
    with contextlib.suppress(SystemExit):
        main()
"""


def test_the_help_of_no_command_loads_what_a_command_works_with(bare: Program) -> None:
    found = loaded(bare, HELP_OF_ALL)
    assert "taskbridge.cli.status" in found
    assert not found & (SERVERS | SLOW | {"rich", "jsonpath_rfc9535"})


def test_the_plugin_of_pytest_loads_neither_celery_nor_drivers_before_a_fixture_is_used(bare: Program) -> None:
    found = loaded(bare, "import taskbridge.testing.plugin")
    assert "taskbridge.testing.plugin" in found
    assert not found & (SERVERS | SLOW)


DECLARING = """
from taskbridge import Batch, DelaySinceLastRun, LatencyNeutral, RateLimit, Record, RetryAfter, pipeline


@pipeline("orders", policy=LatencyNeutral(lease=1.2, tick=0.2))
def orders(batch: Batch) -> None: ...
"""


@pytest.mark.parametrize("command", ["status", "metrics"])
def test_a_look_loads_the_drivers_and_nothing_else_that_is_slow(
    taskbridge: Program, engine: Engine, command: str
) -> None:
    record(engine, "orders", "France", "1", {})
    (taskbridge.directory / "declaring.py").write_text(DECLARING)
    code = f"import sys; sys.argv[1:] = [{command!r}]; from taskbridge.cli.main import main; main()"
    found = loaded(taskbridge, code, TASKBRIDGE_PIPELINES="declaring")
    assert {"psycopg", "redis", "declaring"} <= found
    assert ("prometheus_client" in found) is (command == "metrics")
    slow = SLOW - {"prometheus_client"}
    assert not found & (slow | {"celery", "kombu", "taskbridge.integration", "jsonpath_rfc9535"})


def test_a_program_loads_no_more_than_it_uses(bare: Program) -> None:
    assert not loaded(bare, DECLARING) & (SERVERS | SLOW | {"rich", "click"})
    code = "from taskbridge import notify_event, record_invoice, record_event, install"
    assert not loaded(bare, code) & (SLOW | {"rich"})


def test_a_name_is_found_and_is_no_modules_name() -> None:
    for package in (taskbridge, taskbridge.gate, taskbridge.store):
        modules = {one.name for one in pkgutil.iter_modules(package.__path__)}
        # Whoever imports the module gives the package an attribute of its name.
        assert not modules & set(package.__all__)
        assert all(getattr(package, name) is not None for name in package.__all__)


def test_a_celeryconfig_that_lies_about_is_not_run(bare: Program, configured: dict[str, str]) -> None:
    mark = bare.directory / "mark"
    (bare.directory / "celeryconfig.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    (bare.directory / "yaml.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    assert bare("status", **configured).status == 0
    assert bare("notify", "acme", **configured).status == 0
    assert not mark.exists()
    # Who asks for it gets it, and so does the program `celery`.
    asked = {**configured, "CELERY_CONFIG_MODULE": "celeryconfig", "PYTHONPATH": f".:{bare.environment['PYTHONPATH']}"}
    assert bare("notify", "acme", **asked).status == 0
    assert mark.exists()
    mark.unlink()
    (bare.directory / "yaml.py").unlink()
    assert bare.python("-m", "celery", "-A", "taskbridge", "report", **configured).returncode == 0
    assert mark.exists()


def test_a_command_serves_what_the_modules_declare_and_asks_where_there_are_several(
    taskbridge: Program, a_day: Path, engine: Engine
) -> None:
    def declared(*names: str) -> dict[str, str]:
        module = "pipelines_" + "_".join(names)
        text = "".join(f"pipeline({name!r})(handler)\n" for name in names)
        (taskbridge.directory / f"{module}.py").write_text(
            f"from taskbridge import pipeline\n\n\ndef handler(batch: object) -> None: ...\n\n\n{text}"
        )
        return {"TASKBRIDGE_PIPELINES": module}

    only = declared("orders")
    assert set(taskbridge("status", "--json", **only).json["pipelines"]) == {"orders"}
    assert taskbridge("notify", "acme", "--json", **only).json["pipeline"] == "orders"
    missing = "no pipeline is called 'invoices'; there are: orders. Pass the name of the pipeline"
    assert_one_clear_line(taskbridge("up", "--exit-when-idle", "--import", a_day, **only), missing, status=2)
    assert count(engine) == 0
    several = taskbridge("notify", "acme", **declared("orders", "returns"))
    assert_one_clear_line(several, "--pipeline: orders, returns", status=2)
    assert taskbridge("notify", "acme", "--json", **declared("invoices", "orders")).json["pipeline"] == "invoices"


def test_an_unknown_variable_is_told_with_the_closest_name(bare: Program) -> None:
    ended = bare("env", TASKBRIDGE_POSTGRESS_URL="postgresql://x", TASKBRIDGE_TEST_ANY="1", TASKBRIDGE_DATA_DIR="here")
    assert "TASKBRIDGE_POSTGRESS_URL is unknown" in ended.stderr
    assert "did you mean TASKBRIDGE_POSTGRES_URL?" in ended.stderr
    assert "TASKBRIDGE_TEST_ANY" not in ended.stderr
    assert "TASKBRIDGE_DATA_DIR is" not in ended.stderr


NEEDED = {
    "celery": ("5.3.6", "celery[redis]>=5.4"),
    "SQLAlchemy": ("1.4.50", "sqlalchemy>=2.0.22"),
    "redis": ("4.6.0", "redis[hiredis]>=5.0.1"),
}


def text(name: str) -> str:
    old, needed = NEEDED[name]
    wrong = f"{name.lower()} {old} is too old (TaskBridge needs {needed.partition('>=')[2]} or newer)"
    return f"{wrong}: run `pip install --upgrade '{needed}'`"


def install(directory: Path, name: str, version: str) -> None:
    """Install a library of this version as pip notes it, whose import fails as that of an old one does."""
    noted = directory / f"{name}-{version}.dist-info"
    noted.mkdir()
    (noted / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (directory / f"{name.lower()}.py").write_text("raise ImportError('as with an old one')\n")


@pytest.mark.parametrize(("name", "command"), [("celery", "doctor"), ("SQLAlchemy", "status")])
def test_a_command_names_the_library_that_is_too_old(name: str, command: str, bare: Program) -> None:
    install(bare.directory, name, NEEDED[name][0])
    ended = bare.python("-c", MAIN, command, PYTHONPATH=f"{bare.directory}:{ROOT}")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", f"taskbridge: {text(name)}\n")


def test_a_producer_gets_the_same_sentence_as_an_error(bare: Program) -> None:
    install(bare.directory, "redis", NEEDED["redis"][0])
    ended = bare.python("-c", "import taskbridge; taskbridge.notify", PYTHONPATH=f"{bare.directory}:{ROOT}")
    assert ended.stderr.splitlines()[-1] == f"taskbridge.errors.ConfigurationError: {text('redis')}"


def test_the_lowest_versions_and_unusual_numbers_are_taken(bare: Program) -> None:
    for name, version in {"celery": "5.4", "kombu": "5.10.0rc1", "redis": "5.0.1.0", "psycopg": "10.0"}.items():
        install(bare.directory, name, version)
    script = "from taskbridge.common.libraries import check_libraries; check_libraries()"
    ended = bare.python("-c", script, PYTHONPATH=f"{bare.directory}:{ROOT}")
    assert ended.returncode == 0, ended.stderr
