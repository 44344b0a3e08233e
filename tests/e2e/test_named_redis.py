"""Pipelines on several Redis servers: each server has its own workers, and everybody else sees all of them."""

from __future__ import annotations

import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from celery import Celery, signals
from sqlalchemy import Engine, make_url

from taskbridge import Record, install, notify_event, record
from taskbridge.cli import environment
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.pipeline import DECLARED, Handler, Pipeline, Pipelines
from taskbridge.declaring.policy import LatencyNeutral
from taskbridge.embedded import Servers
from taskbridge.errors import ConfigurationError, ForeignGate, InvalidName, Unavailable
from taskbridge.gate import Answer, State
from taskbridge.handlers.journal import journal
from taskbridge.integration.app import make_app
from taskbridge.integration.checks import Level, examine
from taskbridge.observe import inspect, status
from taskbridge.observe.context import Context
from taskbridge.observe.health import health
from taskbridge.observe.metrics import Metrics
from taskbridge.process.runtime import Runtime, runtime_of
from taskbridge.producer.notify import send, start
from taskbridge.testing import drain, notified
from taskbridge.testing.clock import inject_clock
from taskbridge.web import dashboard
from taskbridge.web.pages.acting import Target, act
from taskbridge.worker import slot
from tests.certificates import Encrypted, certificate
from tests.cli.program import Program
from tests.deployment import Deployment, _unused
from tests.scraping import samples
from tests.waiting import taking_at_most, wait_until
from tests.web.serving import served
from tests.web.visiting import Visitor

pytestmark = pytest.mark.e2e
AT_ONCE = LatencyNeutral(lease=0, tick=0.001)
MODULE = "tests.pipelines_on_redis"


@pytest.fixture
def orders_url(servers: Servers) -> Iterator[str]:
    url = _unused(servers.redis_url)
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.fixture
def deployment(engine: Engine, servers: Servers, tmp_path: Path, orders_url: str) -> Iterator[Deployment]:
    own = Deployment(engine, servers.redis_url, tmp_path, redis_urls={"orders": orders_url}, key_prefix="north")
    declare(runtime_of(own.app), orders="orders")
    yield own
    runtime_of(own.app).close()
    own.close()


def declare(runtime: Runtime, handler: Handler = journal, /, **on: str) -> None:
    """Declare `invoices` on the default Redis, and other pipelines on those of their names."""
    pipelines = Pipelines()
    for name, named in {"invoices": "", **on}.items():
        pipelines.declare(Pipeline(name, handler, AT_ONCE, 500, redis=named))
    for each in {runtime, *runtime._by_url.values()}:
        each.pipelines = pipelines


class Starting:
    """What Celery's signals say of a worker that starts."""

    pool_cls = "solo"

    def __init__(self, app: Celery) -> None:
        self.app = app


def begins(app: Celery) -> None:
    """Configure an app as its worker does when it begins."""
    signals.celeryd_init.send(sender="worker", instance=Starting(app), conf=app.conf, options={})


def message(runtime: Runtime) -> list[str] | None:
    """Take the next run message from the queues of a Redis."""
    for queue in runtime.keys.queues:
        if (text := runtime.redis.rpop(queue)) is not None:
            found: list[str] = json.loads(json.loads(str(text))["body"])[0]
            return found
    return None


def messages(runtime: Runtime) -> list[str]:
    """Take all run messages; return their pipelines."""
    found = []
    while (one := message(runtime)) is not None:
        found.append(one[0])
    return found


def run_all(runtime: Runtime) -> int:
    count = 0
    while (found := message(runtime)) is not None:
        slot.run_tenant(runtime, *found)
        count += 1
    return count


def test_an_event_goes_to_the_redis_of_its_pipeline(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    orders = runtime.on("orders")
    assert runtime.on("invoices") is runtime
    assert orders.on("invoices") is runtime, "a handler of theirs notifies ours"
    assert orders.engine is runtime.engine
    events = [(("orders", "a"), None), (("invoices", "b"), None), (("orders", "a"), None), (("invoices", "c"), None)]
    started, absorbed = Answer.STARTED, Answer.ABSORBED
    assert send(runtime, events) == [started, started, absorbed, started]
    assert (runtime.gate.active("orders"), runtime.gate.active("invoices")) == ([], ["b", "c"])
    assert (orders.gate.active("orders"), orders.gate.active("invoices")) == (["a"], [])
    assert messages(orders) == ["orders"]
    assert messages(runtime) == ["invoices"] * 2


def test_a_redis_that_is_away_costs_the_pipelines_of_the_others_nothing(deployment: Deployment) -> None:
    away = replace(deployment.settings, redis_urls={"orders": "redis://127.0.0.1:1/0"})
    runtime = runtime_of(make_app(away).app)
    declare(runtime, orders="orders")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        send(runtime, [(("orders", "a"), None), (("invoices", "b"), None)])
    assert runtime.gate.active("invoices") == ["b"]
    metrics = Metrics(runtime)
    families = metrics.text()
    assert 'taskbridge_up{server="redis"} 1.0' in families
    assert 'taskbridge_up{server="redis_orders"} 0.0' in families
    assert samples(families)["taskbridge_runners"] == 1
    (problem,) = metrics.problems
    assert problem.startswith("Redis (orders): ")
    assert "TASKBRIDGE_REDIS_URL_ORDERS" in problem
    runtime.close()


def test_metrics_wait_for_several_silent_servers_together(deployment: Deployment) -> None:
    names, listeners = ("orders", "billing", "mail"), list[socket.socket]()

    def end_together() -> None:
        for one in [listener.accept()[0] for listener in listeners] + listeners:
            one.close()

    for _ in names:
        listeners.append(socket.create_server(("127.0.0.1", 0)))
    urls = [f"redis://127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    settings = replace(deployment.settings, redis_urls=dict(zip(names, urls, strict=True)))
    runtime = runtime_of(make_app(settings).app)
    declare(runtime, **dict(zip(names, names, strict=True)))
    threading.Thread(target=end_together, daemon=True).start()
    # For each of them it would wait for 4 s.
    with taking_at_most(6):
        families = Metrics(runtime).text()
    assert 'taskbridge_up{server="redis"} 1.0' in families
    for name in names:
        assert f'taskbridge_up{{server="redis_{name}"}} 0.0' in families
    runtime.close()


AWAY = "redis://:s3cr3t@127.0.0.1:1/0"


@pytest.mark.parametrize(
    ("variable", "name", "shown", "missing"),
    [
        ("TASKBRIDGE_REDIS_URL_ORDERS", "orders", ["invoices", "log-alerts"], ["orders"]),
        ("TASKBRIDGE_REDIS_URL", "default", ["orders"], ["invoices", "log-alerts"]),
    ],
)
def test_status_is_about_the_servers_that_answer_and_names_the_others(
    deployment: Deployment, tmp_path: Path, variable: str, name: str, shown: list[str], missing: list[str]
) -> None:
    bridge = install(deployment.app)
    bridge.record("a", "1", {}, source="orders")
    bridge.record_invoice("a", "1", {})
    taskbridge = Program(tmp_path, deployment.environment(TASKBRIDGE_PIPELINES=MODULE))
    assert taskbridge("status", "--json").status == 0
    ended = taskbridge("status", "--json", **{variable: AWAY})
    assert (ended.status, ended.json["health"]["colour"]) == (1, "red")
    first = ended.json["health"]["findings"][0]
    assert first["sentence"] == ended.json["health"]["sentence"].partition(", and ")[0]
    assert first["sentence"].startswith(f"Redis ({name}): ")
    assert f"({', '.join(missing)}) are not shown" in first["sentence"]
    assert f"{variable} " in first["remedy"]
    assert [*ended.json["pipelines"]] == shown
    assert ended.json["pipelines"][shown[0]]["tenants"]["a"]["pending"] == 1
    printed = taskbridge("status", **{variable: AWAY})
    assert printed.status == 1
    assert f"Redis ({name}): " in printed.stdout
    assert f"\n{shown[0]}: 0 runners, " in printed.stdout
    assert "s3cr3t" not in f"{ended} {printed}"
    for command in ("inspect", "pause", "resume", "notify"):
        assert taskbridge(command, "a", "--pipeline", shown[0], **{variable: AWAY}).status == 0, command
    neither = taskbridge("status", TASKBRIDGE_REDIS_URL=AWAY, TASKBRIDGE_REDIS_URL_ORDERS=AWAY)
    assert (neither.status, neither.stdout, "Redis cannot be reached" in neither.stderr) == (1, "", True)


def test_the_dashboard_is_about_the_servers_that_answer_and_names_the_others(deployment: Deployment) -> None:
    install(deployment.app).record_invoice("a", "1", {})
    away = replace(deployment.settings, redis_urls={"orders": AWAY})
    app = make_app(away).app
    declare(runtime_of(app), orders="orders")
    with served(dashboard(app)) as url, Visitor(url) as visitor:
        first = visitor.get("/")
        assert (first.status_code, visitor.get("/tenants", pipeline="invoices").status_code) == (200, 200)
        assert "Redis (orders): Redis cannot be reached (127.0.0.1:1)" in first.text
        assert "invoices" in first.text.partition('id="live"')[2]
        assert "s3cr3t" not in first.text
        assert visitor.get("/tenant", pipeline="orders", tenant="a").status_code == 503


@pytest.mark.parametrize("is_away", [True, False])
def test_an_error_about_a_named_redis_names_its_setting(
    deployment: Deployment, tmp_path: Path, orders_url: str, is_away: bool
) -> None:
    refusing = make_url(orders_url).set(password="wrong").render_as_string(hide_password=False)
    url = AWAY if is_away else refusing
    runtime = runtime_of(make_app(replace(deployment.settings, redis_urls={"orders": url})).app)
    declare(runtime, orders="orders")
    for call in (
        lambda: send(runtime, [(("orders", "a"), None)]),
        lambda: start(runtime.app, ["a"], "orders"),
        lambda: act(runtime, "notify", Target("orders", "a", None, None, None), "ada"),
    ):
        with pytest.raises(Unavailable) as raised:
            call()
        assert re.findall(r"TASKBRIDGE_\w+", raised.value.remedy) == ["TASKBRIDGE_REDIS_URL_ORDERS"]
    runtime.close()
    taskbridge = Program(tmp_path, deployment.environment(TASKBRIDGE_PIPELINES=MODULE))
    for command in ("notify", "inspect"):
        ended = taskbridge(command, "a", "--pipeline", "orders", TASKBRIDGE_REDIS_URL_ORDERS=url)
        assert ended.status == 1
        assert re.findall(r"TASKBRIDGE_REDIS\w+", ended.stderr) == ["TASKBRIDGE_REDIS_URL_ORDERS"], command


def with_modules(directory: Path, deployment: Deployment, **variables: str) -> Program:
    """Return the program in a directory from which it can import modules."""
    environment = deployment.environment(**variables)
    return Program(directory, environment | {"PYTHONPATH": f"{environment['PYTHONPATH']}{os.pathsep}{directory}"})


ALERTS = """
from taskbridge import Criterion, DelaySinceLastRun, pipeline

@pipeline("alerts", redis="orders", policy=DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 60),)))
def alert(batch): ...
"""


def test_record_needs_only_the_redis_of_its_pipeline(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "alerts.py").write_text(ALERTS)
    (tmp_path / "messages").write_text('{"level": "ERROR", "service": "a"}\n')
    taskbridge = with_modules(tmp_path, deployment, TASKBRIDGE_PIPELINES="alerts")
    recorded = taskbridge("record", "alerts", "messages", "--json", TASKBRIDGE_REDIS_URL=AWAY)
    assert (recorded.status, recorded.json["matched"]) == (0, 1), recorded.stderr
    assert runtime_of(deployment.app).on("orders").gate.active("alerts") == ["a"]
    unreachable = taskbridge("record", "alerts", "messages", TASKBRIDGE_REDIS_URL_ORDERS=AWAY)
    assert (unreachable.status, "TASKBRIDGE_REDIS_URL_ORDERS" in unreachable.stderr) == (1, True)
    assert deployment.rows("SELECT count(*) FROM taskbridge.records WHERE source = 'alerts'") == [(1,)]


def test_commands_that_need_only_postgres_ask_no_redis(deployment: Deployment, tmp_path: Path) -> None:
    away = {"TASKBRIDGE_REDIS_URL": AWAY, "TASKBRIDGE_REDIS_URL_ORDERS": AWAY, "TASKBRIDGE_PIPELINES": MODULE}
    taskbridge = Program(tmp_path, deployment.environment(**away))
    for command in ("quarantine discard --all --yes --pipeline orders", "prune --older-than 30d"):
        ended = taskbridge(*command.split())
        assert ended.status == 0, ended.stderr


ON_SILENT_SERVERS = """
from taskbridge import pipeline

@pipeline("billing", redis="billing")
def bill(batch): ...

@pipeline("mail", redis="mail")
def send(batch): ...

@pipeline("invoices")
def take(batch): ...
"""


def test_status_waits_for_silent_servers_together_and_only_once(deployment: Deployment, tmp_path: Path) -> None:
    (tmp_path / "on_silent_servers.py").write_text(ON_SILENT_SERVERS)
    with ExitStack() as stack:
        listeners = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in ("billing", "mail")}
        urls = {
            f"TASKBRIDGE_REDIS_URL_{name.upper()}": f"redis://127.0.0.1:{listener.getsockname()[1]}"
            for name, listener in listeners.items()
        }
        taskbridge = with_modules(tmp_path, deployment, TASKBRIDGE_PIPELINES="on_silent_servers", **urls)
        # Each wait for one of them takes 4 s.
        with taking_at_most(7):
            ended = taskbridge("status", "--json")
    assert (ended.status, [*ended.json["pipelines"]]) == (1, ["invoices"])
    remedies = [one["remedy"] for one in ended.json["health"]["findings"]]
    assert urls.keys() <= {*re.findall(r"\w+", " ".join(remedies))}


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("broker_url", ["", "amqp://rabbit", "sentinel://127.0.0.1:1"])
def test_a_worker_sends_to_a_redis_of_another_kind_as_its_url_says(
    deployment: Deployment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serializer: str, broker_url: str
) -> None:
    """The password of that Redis must not go out unencrypted, however the worker reaches its own broker."""
    certified = tmp_path / "certificate.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(certified))
    plain_url = deployment.settings.redis_urls["orders"]
    encrypted = Encrypted(plain_url, certificate("localhost", certified), takes_plain=True)
    url = encrypted.url.replace("redis://", "rediss://")
    app = make_app(replace(deployment.settings, redis_urls={"orders": url}, broker_url=broker_url)).app
    app.conf.update(accept_content=[serializer], broker_user="rabbit", broker_password="of the app's own broker")
    begins(app)
    runtime = runtime_of(app)
    declare(runtime, orders="orders")
    with closing(encrypted), redis.Redis.from_url(plain_url) as client:
        before = {one["id"] for one in client.client_list()}
        assert runtime.on("orders").publishes_in_gate is (serializer == "json")
        send(runtime, [(("orders", "a"), None)])
        ours = {one["addr"] for one in client.client_list() if one["id"] not in before}
        assert client.llen(runtime.keys.queues[0]) == 1
        runtime.close()
    assert ours
    assert ours <= encrypted.addresses


def test_a_worker_does_no_run_of_another_name(deployment: Deployment) -> None:
    """Two URLs of one server: the workers of both names take messages from the same queues."""
    settings, seen = deployment.settings, list[str]()
    server, _, database = settings.redis_url.rpartition("/")
    same = f"{server}/0{database}"
    runtime = runtime_of(make_app(replace(settings, redis_urls={"orders": same})).app)
    declare(runtime, lambda batch: seen.append(batch.pipeline), orders="orders")
    install(runtime.app).record("a", "1", {}, source="orders")
    send(runtime, [(("orders", "a"), None)])
    found = message(runtime) or []
    slot.work(runtime, *found)
    assert seen == []
    assert runtime.gate.look("orders", ["a"])[0].state is State.QUEUED
    slot.work(runtime.on("orders"), *found)
    assert seen == ["orders"]
    runtime.close()


def test_a_name_with_the_same_url_is_the_same_redis(deployment: Deployment) -> None:
    settings = replace(deployment.settings, redis_urls={"orders": deployment.settings.redis_url})
    runtime = runtime_of(make_app(settings).app)
    declare(runtime, orders="orders")
    assert runtime.names() == ["invoices", "orders"]
    assert runtime.on("orders") is runtime
    runtime.close()


def test_a_pipeline_that_is_declared_later_is_on_its_redis(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    orders = runtime.on("orders")
    assert (runtime.names(), orders.names()) == (["invoices"], ["orders"])
    runtime.pipelines.declare(Pipeline("billing", journal, AT_ONCE, 500, redis="orders"))
    assert (runtime.names(), orders.names()) == (["invoices"], ["billing", "orders"])
    runtime.pipelines.declare(Pipeline("billing", journal, AT_ONCE, 500))
    assert (runtime.names(), orders.names()) == (["billing", "invoices"], ["orders"])


def test_what_is_missing_is_named(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    declare(runtime, billing="billing")
    for call in (runtime.check, lambda: send(runtime, [(("billing", "a"), None)])):
        with pytest.raises(ConfigurationError, match="TASKBRIDGE_REDIS_URL_BILLING is not set"):
            call()
    assert [one.check for one in examine(runtime) if "REDIS_URL_BILLING" in one.text] == ["pipelines"]
    for name in ("my-redis", "Orders", "1", "a" * 64):
        with pytest.raises(InvalidName, match="the Redis name"):
            declare(runtime, billing=name)


def test_all_of_them_are_shown(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)
    orders, bridge = runtime.on("orders"), install(deployment.app)
    bridge.record("a", "1", {}, source="orders")
    bridge.record_invoice("b", "1", {})
    send(runtime, [(("orders", "a"), None), (("invoices", "b"), None)])
    # A worker of the other Redis sees the same.
    as_orders = runtime_of(make_app(replace(deployment.settings, redis="orders")).app)
    declare(as_orders, orders="orders")
    for each in (runtime, as_orders):
        context = Context.of(each)
        found = health(context)
        assert [(one.pipeline, one.survey.runners, one.backlog.pending) for one in found.pipelines] == [
            ("invoices", 1, 1),
            ("orders", 1, 1),
        ]
        assert context.queued(["invoices", "orders"]) == 2
        assert inspect.tenant(context, "orders", "a").state == State.QUEUED
        assert [one.state for one in status.tenants(context, "orders")] == [State.QUEUED]
        families = Metrics(each).text()
        for name in ("invoices", "orders"):
            assert samples(families, name)["taskbridge_runners"] == 1
        for queue in ("first", "first_orders"):
            assert f'taskbridge_waiting_runs{{queue="{queue}"}} 1.0' in families
    assert as_orders.names() == ["orders"]
    run_all(runtime)
    checks = {one.check: one.text for one in examine(runtime)}
    assert {"Redis", "Redis (orders)", "workers (orders)"} <= checks.keys()
    assert "messages: 1 in" in checks["broker (orders)"]
    as_orders.close()
    run_all(orders)
    assert deployment.deliveries() == [("b", "1"), ("a", "1")]


def test_an_error_names_the_url_of_the_redis(
    deployment: Deployment, orders_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = make_url(orders_url).set(password="wrong").render_as_string(hide_password=False)
    app = make_app(replace(deployment.settings, redis="orders", redis_urls={"orders": wrong})).app
    declare(runtime_of(app), orders="orders")
    problems = {one.check: one.remedy for one in examine(runtime_of(app)) if one.level is Level.PROBLEM}
    assert problems["Redis"] == "correct it in TASKBRIDGE_REDIS_URL_ORDERS"
    with pytest.raises(SystemExit):
        signals.worker_init.send(sender=Starting(app))
    assert "correct it in TASKBRIDGE_REDIS_URL_ORDERS\n" in capsys.readouterr().err
    runtime_of(app).close()


def test_doctor_expects_no_workers_on_a_redis_without_pipelines(deployment: Deployment) -> None:
    runtime, pipelines = runtime_of(deployment.app), Pipelines()
    pipelines.declare(Pipeline("orders", journal, AT_ONCE, 500, redis="orders"))
    runtime.pipelines = pipelines
    checks = {one.check for one in examine(runtime)}
    assert {"broker", "workers (orders)"} <= checks
    assert not {"workers", "transport", "probe"} & checks


def test_each_redis_has_its_owner(deployment: Deployment, tmp_path: Path) -> None:
    runtime = runtime_of(deployment.app)
    orders = runtime.on("orders")
    orders.gate.own("another", "another database")
    with pytest.raises(ForeignGate, match="another database in TASKBRIDGE_REDIS_URL_ORDERS,"):
        install(deployment.app).record("a", "1", {}, source="orders")
    runtime.own_gate()
    with pytest.raises(ForeignGate):
        orders.own_gate()
    assert {one.check for one in examine(runtime) if "another database" in one.text} == {"gate (orders)"}
    with pytest.raises(ForeignGate):
        install(deployment.app).record("a", "1", {}, source="orders")
    for action in ("resume", "notify", "retry"):
        with pytest.raises(ForeignGate):
            act(runtime, action, Target("orders", "a", None, None, None), "ada")
    assert deployment.rows("SELECT FROM taskbridge.audit") == []
    taskbridge = Program(tmp_path, deployment.environment(TASKBRIDGE_PIPELINES=MODULE))
    for command in (("resume",), ("notify",), ("quarantine", "retry", "--tenant")):
        ended = taskbridge(*command, "a", "--pipeline", "orders")
        assert (ended.status, "belong to another deployment" in ended.stderr) == (1, True), command
    assert taskbridge("notify", "a", "--pipeline", "invoices").status == 0
    assert "belong to another deployment" in taskbridge("status").stderr
    # As after `migrate --rebase`.
    runtime.release_gate()
    orders.own_gate()
    assert runtime.gate.owner() is None


def test_a_tenant_in_its_back_off_starts_on_its_redis(deployment: Deployment) -> None:
    runtime = runtime_of(deployment.app)

    def handler(batch: Batch) -> None:
        if not failures:
            failures.append(batch.tenant)
            raise ValueError("once")
        journal(batch)

    failures: list[str] = []
    declare(runtime, handler, orders="orders")
    install(deployment.app).record("a", "1", {}, source="orders")
    deployment.notify_event.delay("a", "orders")
    orders = runtime.on("orders")
    with pytest.raises(ValueError, match="once"):
        run_all(orders)
    assert message(orders) is None
    start(deployment.app, ["a"], "orders")
    assert run_all(orders) == 1
    assert deployment.deliveries() == [("a", "1")]


def test_commands_reach_the_redis_of_the_pipeline(deployment: Deployment, tmp_path: Path) -> None:
    taskbridge = Program(tmp_path, deployment.environment(TASKBRIDGE_PIPELINES=MODULE))
    install(deployment.app).record("a", "1", {}, source="orders")
    assert taskbridge("pause", "a", "--pipeline", "orders").status == 0
    assert taskbridge("notify", "a", "--pipeline", "orders", "--json").json["answer"] == "started"
    orders = runtime_of(deployment.app).on("orders")
    assert run_all(orders) == 1
    assert taskbridge("inspect", "a", "--json").json["pipelines"]["orders"]["state"] == "paused"
    assert taskbridge("resume", "a", "--pipeline", "orders", "--json").json["started"] == 1
    assert taskbridge("status", "--json").json["pipelines"]["orders"]["tenants"]["a"]["state"] == "queued"
    assert run_all(orders) == 1
    assert taskbridge("drain", "--pipeline", "orders", "--json").json["paused"] is True
    assert deployment.deliveries() == [("a", "1")]
    lacks = taskbridge("status", TASKBRIDGE_REDIS_URL_ORDERS="")
    assert (lacks.status, "TASKBRIDGE_REDIS_URL_ORDERS is not set" in lacks.stderr) == (1, True)


def test_a_pipeline_that_moves_in_the_middle_of_a_run_delivers_nothing_twice(deployment: Deployment) -> None:
    """The run on the old Redis, whose clock is a day ahead, goes on after one on the new Redis took its records."""
    runtime = runtime_of(deployment.app)
    calls: list[str] = []

    def handler(batch: Batch) -> None:
        calls.append(batch.token)
        if len(calls) == 1:
            declare(runtime, handler, orders="orders")
            deployment.notify_event.delay("a", "orders")
            assert run_all(runtime.on("orders")) > 1, "a claim with a lower token, and one above the old run's"
            assert deployment.deliveries() == [("a", "1")]
        journal(batch)

    declare(runtime, handler, orders="")
    inject_clock(runtime)
    install(deployment.app).record("a", "1", {}, source="orders")
    deployment.notify_event.delay("a", "orders")
    old = message(runtime) or []
    slot.work(runtime, *old)
    assert calls == sorted(calls)
    assert len(calls) == 2
    assert deployment.deliveries() == [("a", "1")]


@pytest.mark.usefixtures("declarations", "taskbridge_settings")
def test_drain_does_the_runs_of_all_on_the_servers_of_the_test() -> None:
    seen = list[Record]()
    DECLARED.declare(Pipeline("billing", seen.extend, AT_ONCE, 500, redis="billing"))
    record("a", "1", {}, source="billing")
    notify_event.delay("a", "billing")
    assert notified("billing") == {"a": 1}
    assert drain("a", "billing") > 0
    assert [one.external_id for one in seen] == ["1"]


def test_the_embedded_redis_is_that_of_all_names(monkeypatch: pytest.MonkeyPatch, servers: Servers) -> None:
    pipelines = Pipelines()
    pipelines.declare(Pipeline("billing", journal, AT_ONCE, 500, redis="billing"))
    monkeypatch.setattr("taskbridge.declaring.pipeline.DECLARED", pipelines)
    for name in ("POSTGRES_URL", "REDIS_URL", "REDIS_URL_BILLING"):
        monkeypatch.setenv(f"TASKBRIDGE_{name}", "")
        monkeypatch.delenv(f"TASKBRIDGE_{name}")
    environment._choose(servers)
    assert os.environ["TASKBRIDGE_REDIS_URL_BILLING"] == servers.redis_url


def test_real_workers_serve_their_own_redis(deployment: Deployment) -> None:
    bridge, runtime = install(deployment.app), runtime_of(deployment.app)
    declare(runtime, orders="orders", **{"log-alerts": ""})
    # As if its app had a broker of its own.
    other = deployment.settings.redis_url
    with (
        deployment.worker(TASKBRIDGE_PIPELINES=MODULE) as ours,
        deployment.worker(TASKBRIDGE_PIPELINES=MODULE, TASKBRIDGE_REDIS="orders", CELERY_BROKER_URL=other) as theirs,
    ):
        deployment.save("acme", "1")
        bridge.record("acme", "2", {}, source="orders")
        deployment.notify_event.delay("acme", "orders")
        # And one that nobody notifies: their poller finds it.
        bridge.record("quiet", "3", {}, source="orders")
        wait_until(lambda: len(deployment.deliveries()) == 3, "all are delivered")
        checks = examine(runtime)
        levels = {(one.check, one.level) for one in checks if one.check.startswith(("probe", "workers"))}
        assert levels == {(name, "ok") for name in ("workers", "probe", "workers (orders)", "probe (orders)")}
        (sessions,) = (one.text for one in checks if one.check == "sessions")
        assert sessions.startswith("2 workers may need 12 Postgres sessions at once"), "2 slots each, and 4 more"
    by_pid = dict(deployment.rows("SELECT numbers[1], pid FROM ledger"))
    assert by_pid["2"] != by_pid["1"]
    for worker in (ours, theirs):
        assert "does not declare" not in worker.text()
    assert "taskbridge.run" in ours.text()
    assert "taskbridge.run" in theirs.text()
    # One that takes messages from their broker, and does not say which Redis it serves.
    theirs_url = deployment.settings.redis_urls["orders"]
    with deployment.worker(TASKBRIDGE_PIPELINES=MODULE, CELERY_BROKER_URL=theirs_url):
        found = [one.text for one in examine(runtime) if (one.check, one.level) == ("workers (orders)", "warning")]
        assert [text for text in found if "does not declare orders" in text]
