"""A project's settings reach TaskBridge, `manage.py` has its commands, and Django's checks look at it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from django.test.utils import override_settings
from sqlalchemy import make_url

from taskbridge.common.texts import spoken
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import pipeline
from taskbridge.django.configuration import NAMES, url_of, variables
from taskbridge.embedded import Servers
from taskbridge.errors import ConfigurationError
from taskbridge.process.runtime import Runtime
from taskbridge.settings import Settings
from taskbridge.store import adopt, adoption, connect
from taskbridge.store.db import parameters_of
from taskbridge.testing.servers import fresh_database
from tests.deployment import Deployment
from tests.django.conftest import database
from tests.django.shop import pipelines
from tests.store.adopting import run

pytestmark = pytest.mark.usefixtures("bare", "project")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of TaskBridge's in the environment."""
    for name in [name for name in os.environ if name.startswith("TASKBRIDGE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def declared(declarations: None) -> None:  # noqa: ARG001 - it ends with the test
    pipeline("orders")(pipelines.send_orders)


@contextmanager
def empty(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database without any table as Django's default."""
    with fresh_database(servers, "template1") as url, monkeypatch.context() as changed:
        connections["default"].close()
        for name, value in database(make_url(url)).items():
            changed.setitem(connections["default"].settings_dict, name, value)
        yield url
        connections["default"].close()


def test_the_url_is_that_of_django_s_database(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"NAME": "shop/é", "USER": "a@b", "PASSWORD": "p:/?#[]@ %é", "HOST": "::1", "PORT": "5433"}
    for name, value in wanted.items():
        monkeypatch.setitem(connections["default"].settings_dict, name, value)
    options = {"options": "-c search_path=shop,public", "sslmode": "prefer", "isolation_level": 2}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    given = {names[name]: value for name, value in wanted.items()}
    given |= {"options": "-c search_path=shop,public", "sslmode": "prefer"}
    assert parameters_of(url_of("default")) == given


def test_the_role_that_django_assumes_is_that_of_all_connections(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = 'Shop owner\'s \\ "main" é'
    quoted = '"' + role.replace('"', '""') + '"'
    run(deployment.engine, f"CREATE ROLE {quoted}")
    options = {"options": "-c search_path=shop,public", "assume_role": role}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    engine = connect(url_of("default"))
    with engine.connect() as own:
        assert own.exec_driver_sql("SELECT current_user").scalar_one() == role
        assert own.exec_driver_sql("SHOW search_path").scalar_one() == "shop,public"
    engine.dispose()
    run(deployment.engine, f"DROP ROLE {quoted}")


def test_what_is_not_set_follows_from_django_and_celery_and_the_environment_wins(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = deployment.settings.redis_url
    with override_settings(
        CELERY_BROKER_URL=redis,
        TASKBRIDGE_RUN_BUDGET=2,
        TASKBRIDGE_TAIL_LISTENS=True,
        TASKBRIDGE_KEY_PREFIX="shop",
        TASKBRIDGE_METRICS_PORT=None,
    ):
        found = Settings.read()
        assert parameters_of(found.postgres_url)["dbname"] == deployment.engine.url.database
        assert (found.redis_url, found.broker) == (redis, redis)
        assert (found.run_budget, found.tail_listens, found.key_prefix) == (2, True, "shop")
        assert found.pipelines == ("tests.django.shop.pipelines",)
        monkeypatch.setenv("TASKBRIDGE_KEY_PREFIX", "other")
        assert Settings.read().key_prefix == "other"
    with override_settings(CELERY_BROKER_URL="amqp://broker", TASKBRIDGE_PIPELINES=["a", "b"]):
        assert variables()["TASKBRIDGE_BROKER_URL"] == "amqp://broker"
        assert "TASKBRIDGE_REDIS_URL" not in variables()
        assert Settings.read().pipelines == ("a", "b")
    with override_settings(TASKBRIDGE_DATABASE=None):
        assert Settings.read().postgres_url == ""
    refused = "TASKBRIDGE_DATABASE is 'nowhere', which is not in DATABASES: use one of default, other, lite"
    with override_settings(TASKBRIDGE_DATABASE="nowhere"), pytest.raises(ConfigurationError, match=refused):
        Settings.read()


def test_migrate_brings_the_schema_before_the_project_s_own_tables(
    taskbridge_servers: Servers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with empty(taskbridge_servers, monkeypatch) as url:
        assert sorted(one.id for one in run_checks(databases=["default"]) if one.id) == [
            "taskbridge.E002",
            "taskbridge.W004",
        ]
        monkeypatch.setenv("TASKBRIDGE_REDIS_URL", "redis://localhost")
        for _ in range(2):
            call_command("migrate", run_syncdb=True, verbosity=1, skip_checks=False)
        engine = connect(url)
        with engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM taskbridge.records").scalar_one() == 0
        engine.dispose()
        said = capsys.readouterr().out
        assert said.index("TaskBridge's schema") < said.index("Synchronizing")
        call_command("migrate", database="other", run_syncdb=True, verbosity=1)
        assert "TaskBridge" not in capsys.readouterr().out


def test_records_that_are_to_be_in_another_database_are_refused(
    taskbridge_servers: Servers, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASKBRIDGE_POSTGRES_URL", deployment.settings.postgres_url)
    with empty(taskbridge_servers, monkeypatch) as url:
        words = r"TASKBRIDGE_POSTGRES_URL names another database \(.+\) than DATABASES\['default'\] \(.+\).+: unset "
        for name in (NAMES["default"], connections["default"].settings_dict["NAME"]):
            monkeypatch.setitem(NAMES, "default", name)
            with pytest.raises(CommandError, match=words):
                call_command("migrate", run_syncdb=True, verbosity=0)
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT to_regnamespace('taskbridge')").fetchone() == (None,)
        with override_settings(TASKBRIDGE_REDIS_URL="redis://localhost"):
            (found,) = run_checks(databases=["default"])
        assert found.id == "taskbridge.E005"
        with pytest.raises(ConfigurationError, match=words):
            Runtime(Settings.read()).check(redis=False)


def test_checks_tell_what_is_wrong_with_the_settings() -> None:
    def ids(**values: Any) -> list[tuple[str, str]]:
        with override_settings(**values):
            return [(str(one.id), f"{one.msg} {one.hint or ''}") for one in run_checks()]

    whole = {"TASKBRIDGE_REDIS_URL": "redis://localhost", "TASKBRIDGE_PIPELINES": None}
    assert ids(**whole) == []
    ((number, text),) = ids(**whole, TASKBRIDGE_RUN_BUGDET=1)
    assert number == "taskbridge.W001"
    assert "did you mean TASKBRIDGE_RUN_BUDGET?" in text
    for alias, words in (
        ("nowhere", "is not in DATABASES"),
        ("lite", "is SQLite set TASKBRIDGE_DATABASE to"),
    ):
        ((number, text),) = ids(**whole, TASKBRIDGE_DATABASE=alias)
        assert number == "taskbridge.E001"
        assert words in text
    for values, words in (
        ({**whole, "TASKBRIDGE_DATABASE": None}, "TASKBRIDGE_POSTGRES_URL is not set"),
        ({}, "TASKBRIDGE_REDIS_URL is not set"),
        ({**whole, "TASKBRIDGE_PIPELINES": ["nowhere.at_all"]}, "'nowhere.at_all' does not import: ModuleNotFoundErr"),
    ):
        ((number, text),) = ids(**values)
        assert number == "taskbridge.E002"
        assert words in text


def test_checks_tell_whose_orm_is_not_in_the_transaction() -> None:
    @pipeline("sent")
    async def send(_: Batch) -> None:
        pass

    with override_settings(TASKBRIDGE_REDIS_URL="redis://localhost"):
        assert [one.id for one in run_checks()] == ["taskbridge.W002"]
        with override_settings(TASKBRIDGE_DATABASE=None, TASKBRIDGE_POSTGRES_URL="postgresql:///a"):
            assert run_checks() == []


def test_remedies_name_where_the_database_is_set(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    """In DATABASES, unless a variable or a setting has another."""
    monkeypatch.setenv("TASKBRIDGE_REDIS_URL", deployment.settings.redis_url or "")
    connections["default"].close()
    for name, value in (("HOST", "127.0.0.1"), ("PORT", "1")):
        monkeypatch.setitem(connections["default"].settings_dict, name, value)
    url = url_of("default")
    for setting, said in ((None, "correct DATABASES['default']"), (url, "correct TASKBRIDGE_POSTGRES_URL")):
        with override_settings(TASKBRIDGE_POSTGRES_URL=setting):
            (found,) = run_checks(databases=["default"])
        assert (found.id, said in str(found.hint)) == ("taskbridge.E003", True)
    for more, said in (("", "DATABASES['default']"), ("&connect_timeout=9", "TASKBRIDGE_POSTGRES_URL")):
        monkeypatch.setenv("TASKBRIDGE_POSTGRES_URL", url + more)
        assert spoken("correct TASKBRIDGE_POSTGRES_URL") == f"correct {said}"


def test_a_command_without_the_gate_names_the_setting_to_add(capsys: pytest.CaptureFixture[str]) -> None:
    with override_settings(CELERY_BROKER_URL="sentinel://localhost"), pytest.raises(CommandError):
        call_command("taskbridge", "status")
    said = capsys.readouterr().err
    assert "DATABASES['default'] is set but TASKBRIDGE_REDIS_URL is not: set TASKBRIDGE_REDIS_URL" in said


def test_checks_of_the_database_tell_what_to_do(deployment: Deployment) -> None:
    with override_settings(TASKBRIDGE_REDIS_URL="redis://localhost"):
        adopt(deployment.engine, adoption(deployment.engine, "shop_order", "customer_id", ["id"]))
        assert run_checks(databases=["default"]) == []
        run(deployment.engine, "DROP TRIGGER taskbridge_shop_order_insert ON shop_order")
        (found,) = run_checks(databases=["default"])
        assert found.id == "taskbridge.W003"
        assert "shop_order: public.shop_order has no trigger" in found.msg
        assert "manage.py taskbridge adopt public.shop_order --tenant customer_id --key id" in str(found.hint)
        assert run_checks(databases=["other"]) == []
        run(deployment.engine, "UPDATE taskbridge.taskbridge_cluster SET system_identifier = 1")
        (found,) = run_checks(databases=["default"])
        assert found.id == "taskbridge.E004"
