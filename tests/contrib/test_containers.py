"""Image, Compose and Kubernetes: what must be true of them, whoever builds or runs them.

`make packages` asks the tools of each: hadolint, helm, and the schemas of Compose and Kubernetes.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import penstock

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yml").read_text())
CHART = ROOT / "contrib" / "helm" / "penstock"
PLAIN = ROOT / "contrib" / "kubernetes" / "penstock.yaml"
USER = "10001"


def words(instruction: str) -> list[str]:
    """What stands behind an instruction of the Dockerfile, each time that it comes."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{instruction} +(.*)$", joined, re.MULTILINE)


def test_the_image_is_small_and_not_of_root() -> None:
    bases = words("FROM")
    assert len(bases) == 2
    assert {base.split(" ")[0] for base in bases} == {"python:3.11-slim-bookworm"}
    (copied,) = [line for line in words("COPY") if "--from" in line]
    assert copied == "--from=build /opt/penstock /opt/penstock"
    assert words("USER") == [f"{USER}:{USER}"]
    assert words("VOLUME") == ["/var/lib/penstock"]
    assert words("CMD") == ['["serve"]']
    assert '["penstock", "health_check", "running"]' in words("HEALTHCHECK")[0]
    assert not words("ADD")


def test_the_image_is_built_of_what_git_has() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    let_in = [line[1:] for line in lines if line.startswith("!")]
    assert all((ROOT / name).exists() for name in let_in)
    assert {"src", "setup.py", "pyproject.toml", "constraints.txt"} <= set(let_in)


def test_the_containers_of_compose_find_each_other_and_their_files() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"broker", "prometheus", "grafana"}
    broker = services["broker"]
    assert broker["read_only"] is True
    assert broker["cap_drop"] == ["ALL"]
    for service in services.values():
        assert "build" in service or re.search(r":v?\d+\.\d+\.\d+$", service["image"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in COMPOSE["volumes"] or (ROOT / source).is_file(), volume
    prometheus = yaml.safe_load((ROOT / "contrib/compose/prometheus.yml").read_text())
    targets = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    port = broker["environment"]["PENSTOCK_PROMETHEUS_PORT"]
    assert targets == [f"broker:{port}"]
    assert broker["environment"]["PENSTOCK_HTTP_HOSTS"] == "broker"


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    """kind -> object; of the services, the one for clients."""
    found: dict[str, Any] = {}
    for one in yaml.safe_load_all(PLAIN.read_text()):
        found.setdefault(one["kind"], one)
    return found


def test_the_pod_may_do_little_and_keeps_its_disk(objects: dict[str, Any]) -> None:
    spec = objects["StatefulSet"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["replicas"] == 1
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert str(pod["securityContext"]["runAsUser"]) == USER
    assert pod["enableServiceLinks"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert container["resources"]["limits"]["memory"]
    (claim,) = spec["volumeClaimTemplates"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    environment = {one["name"]: one["value"] for one in container["env"]}
    data = Path(environment["PENSTOCK_DATA"])
    assert Path(mounts[claim["metadata"]["name"]]) in data.parents


def test_probes_and_budget_are_of_this_pod(objects: dict[str, Any]) -> None:
    template = objects["StatefulSet"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    probes = {
        name: container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }
    assert probes == {
        "startup": "/health/ready", "readiness": "/health/ready", "liveness": "/health/live",
    }  # fmt: skip
    labels = template["metadata"]["labels"]
    budget = objects["PodDisruptionBudget"]["spec"]
    assert budget["selector"]["matchLabels"] == labels
    assert objects["StatefulSet"]["spec"]["selector"]["matchLabels"] == labels
    assert objects["Service"]["spec"]["selector"] == labels


def test_the_chart_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == penstock.__version__
    assert f"image: {chart['name']}:{penstock.__version__}" in PLAIN.read_text().replace('"', "")
