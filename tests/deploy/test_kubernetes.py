"""The manifests are valid, fit together, and scale without flapping in a simulated day."""

from __future__ import annotations

import re

import kubernetes_validate
import pytest
import yaml

from taskbridge.settings import Settings, unknown_variables
from tests.scraping import SAMPLES
from verification.scaling import MANIFESTS, PAGE, days, load, markdown, slots_of_a_worker

KUBERNETES = ("1.33", "1.37")
DOCUMENTS = [
    document
    for file in sorted(MANIFESTS.glob("*.yaml"))
    if file.name != "kustomization.yaml"
    for document in yaml.safe_load_all(file.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("version", KUBERNETES)
def test_the_manifests_are_valid(version: str) -> None:
    for document in DOCUMENTS:
        if document["kind"] != "ScaledObject":  # KEDA's; the simulation below reads it
            kubernetes_validate.validate(document, version, strict=True)


def test_what_the_manifests_name_is_there() -> None:
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text(encoding="utf-8"))
    assert sorted([*kustomization["resources"], "kustomization.yaml"]) == sorted(
        file.name for file in MANIFESTS.glob("*.yaml")
    )
    config = load("config.yaml", "ConfigMap")
    assert unknown_variables(config["data"]) == []
    settings = Settings.read(config["data"])
    pods = [document["spec"]["template"] for document in DOCUMENTS if document["kind"] in ("Deployment", "Job")]
    assert len(pods) == 3
    for pod in pods:
        # A Service's variables could be taken for settings.
        assert pod["spec"]["enableServiceLinks"] is False
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        (container,) = pod["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {"requests", "limits"} == set(container["resources"])
        assert [one["configMapRef"]["name"] for one in container["envFrom"] if "configMapRef" in one] == ["taskbridge"]
    worker = load("worker.yaml", "Deployment")
    spec = worker["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert [port["containerPort"] for port in container["ports"]] == [settings.metrics_port]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "metrics"}
    # One batch, and the 30 s that billiard waits for the reader of a pool process's result.
    assert spec["terminationGracePeriodSeconds"] > settings.run_budget + 30 + 20
    scaled = load("scaledobject.yaml", "ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == worker["metadata"]["name"]
    (trigger,) = scaled["triggers"]
    assert set(re.findall(r"\btaskbridge_\w+", trigger["metadata"]["query"])) <= SAMPLES
    assert float(trigger["metadata"]["threshold"]) == slots_of_a_worker() / 2


def test_a_day_of_bursts_does_not_flap_and_the_page_shows_it() -> None:
    by_rule = days()
    # A surge may begin just after a worker was stopped.
    assert by_rule["as shipped"].flaps <= 2
    assert by_rule["length of the queues"].flaps > 20
    assert PAGE.shown() == markdown(by_rule)
