"""configs/kubernetes: what it has is legal for Kubernetes, its nodes are legal configurations, and it does what docs/operations.md says."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from shadowrelay.node.connectors import GRACE_SECONDS
from shadowrelay.node.node import TOLD_SECONDS_MAX
from shadowrelay.settings import configuration
from shadowrelay.settings.authority import make_authority, signed_pems
from shadowrelay.settings.guarantees import promises
from tests.tidy.house import ROOT

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="`make setup` installs it")

FILE = ROOT / "configs" / "kubernetes" / "shadowrelay.yaml"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))
VERSION = "1.31"


def of_kind(kind: str) -> dict[str, Any]:
    (found,) = [document for document in DOCUMENTS if document["kind"] == kind]
    return found


POD = of_kind("StatefulSet")["spec"]["template"]["spec"]
NODE = next(container for container in POD["containers"] if container["name"] == "node")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: f"{document['kind']} {document['metadata']['name']}")
def test_each_object_is_what_the_schemas_of_kubernetes_want(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, VERSION, strict=True)


def test_the_schemas_refuse_a_misspelt_key() -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**of_kind("PodDisruptionBudget"), "spec": {"maxUnavailble": 1}}, VERSION, strict=True)


@pytest.fixture
def nodes(tmp_path: Path) -> dict[str, configuration.LoadedSettings]:
    """Its configurations, by pod, with the variables that the pod sets, and a secret."""
    authority = make_authority("nodes", timedelta(days=1))
    found = {}
    variables = {one["name"]: one["value"] for one in NODE["env"] if "value" in one}
    for name, text in of_kind("ConfigMap")["data"].items():
        pod = name.removesuffix(".toml")
        place = tmp_path / pod
        place.mkdir()
        files = zip(("tls.crt", "tls.key"), signed_pems(authority, f"{pod}.example", timedelta(days=1)), strict=True)
        for file, data in (*files, ("ca.crt", authority.pem)):
            (place / file).write_bytes(data)
        (place / name).write_text(text.replace("/etc/shadowrelay/tls", str(place)))
        environ = {key: value.replace("$(HOST)", f"host-of-{pod}") for key, value in variables.items()}
        found[pod] = configuration.load(place / name, environ)
    return found


def test_its_nodes_are_peers_of_each_other_and_have_the_host_as_a_label(nodes: dict[str, configuration.LoadedSettings]) -> None:
    spec = of_kind("StatefulSet")["spec"]
    names = {pod: loaded.settings.server.name for pod, loaded in nodes.items()}
    services = {document["metadata"]["name"]: document["spec"] for document in DOCUMENTS if document["kind"] == "Service"}
    headless = services[spec["serviceName"]]

    assert [f"mail-{number}" for number in range(spec["replicas"])] == sorted(nodes)
    assert {f"{pod}.{spec['serviceName']}.mail.svc.cluster.local" for pod in nodes} == set(names.values())
    for pod, loaded in nodes.items():
        assert {name for other, name in names.items() if other != pod} == {peer.name for peer in loaded.settings.peers}
        assert (f"host-of-{pod}",) == loaded.settings.server.failure_domains
        assert any("another machine" in line for line in promises(loaded.settings))
    assert "None" == headless["clusterIP"]
    assert headless["publishNotReadyAddresses"]


def test_two_pods_are_never_on_one_host_nor_evicted_together_and_each_keeps_its_volume() -> None:
    (rule,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    claims = {claim["metadata"]["name"] for claim in of_kind("StatefulSet")["spec"]["volumeClaimTemplates"]}
    places = {mount["mountPath"]: mount["name"] for mount in NODE["volumeMounts"]}

    assert "kubernetes.io/hostname" == rule["topologyKey"]
    assert 1 == of_kind("PodDisruptionBudget")["spec"]["maxUnavailable"]
    assert {places["/var/lib/shadowrelay"], places["/var/log/shadowrelay/tracking"]} == claims


def test_a_pod_that_ends_has_the_time_to_drain_and_to_stop() -> None:
    (bound,) = [int(word) for word in NODE["lifecycle"]["preStop"]["exec"]["command"][-1].split() if word.isdecimal()][:1]

    assert POD["terminationGracePeriodSeconds"] >= bound + 2 * GRACE_SECONDS + TOLD_SECONDS_MAX
    assert "undrain" in NODE["lifecycle"]["postStart"]["exec"]["command"][-1]
    assert ("/health/ready", "/health/live") == tuple(NODE[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe"))
