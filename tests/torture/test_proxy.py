"""The proxy in front of Redis: what it loses and what it lets pass."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import make_url

from taskbridge.embedded import Servers
from verification.torture.proxy import Proxy

SCRIPT = "return redis.call('INCR', KEYS[1])"


@pytest.fixture
def proxy(servers: Servers) -> Iterator[Proxy]:
    port = make_url(servers.redis_url).port
    assert port is not None
    made = Proxy(port)
    yield made
    made.close()


def connected(proxy: Proxy, servers: Servers) -> redis.Redis:
    url = make_url(servers.redis_url).set(port=proxy.port).render_as_string(hide_password=False)
    return redis.Redis.from_url(url, socket_timeout=0.3, retry=None, single_connection_client=True)


def test_connections_that_fall_silent_stay_open_and_later_ones_pass(proxy: Proxy, servers: Servers) -> None:
    with connected(proxy, servers) as before, connected(proxy, servers) as later:
        assert before.ping()
        proxy.fall_silent()
        with pytest.raises(redis.TimeoutError):
            before.ping()
        later.connection = None
        assert later.ping()


def test_a_script_whose_reply_is_lost_has_been_executed(proxy: Proxy, servers: Servers) -> None:
    with redis.Redis.from_url(servers.redis_url) as direct, connected(proxy, servers) as client:
        sha = direct.script_load(SCRIPT)
        direct.delete("torture-proxy-other", "torture-proxy")
        with proxy.losing_replies(1, ["torture-proxy"]):
            assert client.evalsha(sha, 1, "unrelated") == 1
            with pytest.raises(redis.ConnectionError):
                client.evalsha(sha, 1, "torture-proxy")
            assert proxy.left_to_lose == 0
        assert direct.get("torture-proxy") == b"1"
        direct.delete("unrelated", "torture-proxy")
