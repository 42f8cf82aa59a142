"""What the tools of Docker and Kubernetes say of the files for them.

None of them needs a daemon or a cluster. Helm is the one of the path, or is built of its Go module
where there is Go, which takes minutes.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.packages.dist import ROOT, run

TOOLS = ROOT / ".venv-package" / "bin"
CHART = ROOT / "contrib" / "helm" / "penstock"
PLAIN = ROOT / "contrib" / "kubernetes" / "penstock.yaml"
HELM = "helm.sh/helm/v3/cmd/helm@v3.16.4"
KUBERNETES = ("--kube-version", "1.34")  # a helm that was built so takes itself for an old one
# Values that use every branch of the templates.
OTHER_VALUES = """
config: |
  memory = "0.5"
definitionsSecret: users
storage: {size: 1Ti, className: fast}
prometheusPort: "off"
nodeSelector: {disk: fast}
tolerations: [{key: broker, operator: Exists}]
affinity: {nodeAffinity: {}}
"""


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The program."""
    found = shutil.which("helm")
    if found is None:
        if shutil.which("go") is None:
            pytest.skip("neither helm nor go is installed")
        directory = tmp_path_factory.mktemp("helm")
        run("go", "install", HELM, env={**os.environ, "GOBIN": str(directory)})
        found = str(directory / "helm")
    return found


def test_the_dockerfile_has_no_fault() -> None:
    run(TOOLS / "hadolint", ROOT / "Dockerfile")


@pytest.mark.parametrize(
    ("schema", "file"),
    [
        ("compose-spec", "compose.yml"),
        ("github-workflows", ".github/workflows/release.yml"),
    ],
)
def test_the_schema_of(schema: str, file: str) -> None:
    run(TOOLS / "check-jsonschema", "--builtin-schema", f"vendor.{schema}", ROOT / file)


def test_kubernetes_knows_each_member_of_the_plain_objects() -> None:
    run(TOOLS / "kubernetes-validate", "--strict", PLAIN)


def test_the_plain_objects_are_the_chart_s(helm: str) -> None:
    made = run(helm, "template", "penstock", CHART, *KUBERNETES)
    assert PLAIN.read_text().endswith(made)


def test_the_chart_with_other_values(helm: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(OTHER_VALUES)
    run(helm, "lint", "--strict", CHART, "--values", values)
    made = tmp_path / "made.yaml"
    made.write_text(run(helm, "template", "penstock", CHART, *KUBERNETES, "--values", values))
    run(TOOLS / "kubernetes-validate", "--strict", made)


def test_a_value_that_is_misspelt_is_refused(helm: str) -> None:
    said = run(helm, "template", "penstock", CHART, *KUBERNETES, "--set", "sise=1", code=1)
    assert "sise" in said
