"""What the tools of Docker and Kubernetes say of the files for them.

None of them needs a daemon or a cluster. Helm is the one of the path, or is run from its Go module
where there is Go.
"""

import shutil
from pathlib import Path

import pytest

from tests.packages.dist import ROOT, run

TOOLS = ROOT / ".venv-package" / "bin"
CHART = ROOT / "contrib" / "helm" / "penstock"
PLAIN = ROOT / "contrib" / "kubernetes" / "penstock.yaml"
HELM = ("go", "run", "helm.sh/helm/v3/cmd/helm@v3.16.4")
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


def helm(*arguments: str | Path) -> str:
    program = ("helm",) if shutil.which("helm") else HELM
    if shutil.which(program[0]) is None:
        pytest.skip("neither helm nor go is installed")
    return run(*program, *arguments, cwd=ROOT)


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


def test_the_plain_objects_are_the_chart_s() -> None:
    assert helm("template", "penstock", CHART, "--skip-tests") in PLAIN.read_text()


def test_the_chart_with_other_values(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(OTHER_VALUES)
    helm("lint", "--strict", CHART, "--values", values)
    made = tmp_path / "made.yaml"
    made.write_text(helm("template", "penstock", CHART, "--values", values))
    run(TOOLS / "kubernetes-validate", "--strict", made)


def test_a_value_that_is_misspelt_is_refused(tmp_path: Path) -> None:
    if shutil.which("helm") is None:
        pytest.skip("go run does not hand on the exit code of helm")
    said = run("helm", "template", "penstock", CHART, "--set", "sise=1", code=1)
    assert "sise" in said
