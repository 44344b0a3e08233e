"""One URL names the Sentinels and their primary, for the gate and for the broker."""

from __future__ import annotations

from ssl import CERT_NONE

import pytest
from kombu import Connection

from taskbridge.errors import ConfigurationError
from taskbridge.settings import Settings

URL = "sentinel://shop:p%40ss@s1;sentinel://[::1]:26380/3?master_name=orders&sentinel_password=s%26"


def test_the_broker_gets_the_same_primary() -> None:
    settings = Settings.read({"TASKBRIDGE_REDIS_URL": URL})
    assert settings.broker == "sentinel://shop:p%40ss@s1:26379/3;sentinel://[::1]:26380"
    options = settings.broker_options
    assert (options["master_name"], options["sentinel_kwargs"]["password"]) == ("orders", "s&")
    other = Settings.read({"TASKBRIDGE_REDIS_URL": URL, "TASKBRIDGE_BROKER_URL": "amqp://rabbit"})
    assert (other.broker, other.broker_options) == ("amqp://rabbit", {})


def test_parameters_for_tls_are_those_of_both() -> None:
    url = "sentinel://s1/3?master_name=orders&ssl_ca_certs=%2Fca.pem&ssl_cert_reqs=none"
    settings = Settings.read({"TASKBRIDGE_REDIS_URL": url})
    options = {"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "none"}
    assert settings.broker_options["sentinel_kwargs"].items() >= options.items()
    assert Connection(settings.broker).ssl == {"ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": CERT_NONE}


@pytest.mark.parametrize(
    "url",
    [
        "sentinel://s1:26379/0?master_name=orders&ssl_cert_reqs=perhaps",
        "sentinel://s1:26379/0?master_name=orders&ssl_unknown=1",
        "sentinel://s1:26379/0?master_name=",
        "sentinel://s1:26379/0?master_name=orders&timeout=5",
        "sentinel://s1:26379;redis://s2:6379/0?master_name=orders",
        "sentinel://s1:port/0?master_name=orders",
        "sentinel://s1:26379/zero?master_name=orders",
    ],
)
def test_an_unusable_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^TASKBRIDGE_REDIS_URL cannot be read") as refused:
        Settings.read({"TASKBRIDGE_REDIS_URL": url.replace("//", "//:secret@", 1)})
    assert "secret" not in str(refused.value)
