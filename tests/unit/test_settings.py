"""Settings are read whole or refused with the variable's name, never with a password."""

from __future__ import annotations

import pytest

from taskbridge.errors import ConfigurationError
from taskbridge.settings import Settings, unknown_variables


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("RUNNER_TTL", "soon", "TASKBRIDGE_RUNNER_TTL is 'soon': give a number of seconds"),
        ("RUN_BUDGET", "-1", "TASKBRIDGE_RUN_BUDGET"),
        ("METRICS_PORT", "9808/tcp", "TASKBRIDGE_METRICS_PORT is '9808/tcp': give a port number, or 0 for none"),
        (
            "POSTGRES_URL",
            "mysql://u:secret@h/d",
            "must begin with postgresql://, postgresql\\+psycopg:// or postgres://$",
        ),
        ("REDIS_URL", "h:6379", "TASKBRIDGE_REDIS_URL must begin with redis://, rediss://, unix:// or sentinel://$"),
        ("REDIS_URL", "redis://:secret@a;redis://b:6379", "set TASKBRIDGE_KEY_PREFIX to a name in braces"),
        ("REDIS_URL", "sentinel://:secret@h:26379/0", "TASKBRIDGE_REDIS_URL cannot be read: write sentinel://"),
        (
            "REDIS_URL_ORDERS",
            "redis://:secret@a;redis://b",
            "TASKBRIDGE_REDIS_URL_ORDERS names the nodes of a Redis Cluster, which cannot",
        ),
        ("REDIS_URL_ORDERS", "h:6379", "TASKBRIDGE_REDIS_URL_ORDERS must begin with redis://, rediss://"),
        ("REDIS_URL_ORDERS", "redis://:secret@h:port/0", "TASKBRIDGE_REDIS_URL_ORDERS cannot be read: write redis://"),
        ("REDIS_URL_MY-ORDERS", "redis://:secret@h/0", "the Redis name 'my-orders' is not allowed"),
        ("REDIS", "Orders", "TASKBRIDGE_REDIS is 'orders', but TASKBRIDGE_REDIS_URL_ORDERS is not set"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_and_without_secrets(name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text) as refused:
        Settings.read({f"TASKBRIDGE_{name}": value})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POSTGRES", "POSTGRES_URL"),
        ("SCHEME", "SCHEMA"),
        ("COLOUR", None),
    ],
)
def test_a_name_is_suggested_only_where_one_is_close(name: str, meant: str | None) -> None:
    ((found, text),) = unknown_variables({f"TASKBRIDGE_{name}": "1"})
    assert found == f"TASKBRIDGE_{name}"
    assert text.startswith(f"did you mean TASKBRIDGE_{meant}?" if meant else "there are TASKBRIDGE_BASE_INTERVAL, ")


def test_settings_as_an_environment_read_back_the_same() -> None:
    chosen = Settings(
        postgres_url="postgresql://shop@db/orders",
        redis_url="rediss://cache/1",
        redis="orders",
        redis_urls={"orders": "redis://orders/0", "billing": "sentinel://s:26379/0?master_name=billing"},
        pipelines=("shop.pipelines", "shop.more"),
        runner_ttl=7.5,
        tail_listens=True,
        metrics_port=9000,
    )

    assert Settings.read(chosen.as_environment()) == chosen
    assert Settings.read(Settings().as_environment()) == Settings()
    assert unknown_variables(chosen.as_environment()) == []
    assert Settings.read({"TASKBRIDGE_PIPELINES": " a.b , c ,"}).pipelines == ("a.b", "c")


@pytest.mark.parametrize("password", ["redis://[half-a-bracket", "rediss://of:many-colons"])
def test_a_password_that_looks_like_a_url_is_taken_as_it_is(password: str) -> None:
    assert Settings.read({"TASKBRIDGE_DASHBOARD_PASSWORD": password}).dashboard_password == password
