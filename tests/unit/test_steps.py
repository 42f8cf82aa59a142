"""What steps count (tests/helpers/steps.py): lines of the Penstock that is imported, no others."""

import os
from pathlib import Path

import pytest

import penstock
from tests.helpers.steps import cost_of, is_of_package


def test_only_lines_of_the_package_count_wherever_it_is() -> None:
    package = Path(penstock.__file__).parent
    assert is_of_package(penstock.__file__)
    assert is_of_package(str(package / "queues" / "amq_queue.py"))
    assert not is_of_package(f"{package}_of_others{os.sep}a.py")
    assert not is_of_package("/home/me/penstock/tests/unit/test_steps.py")
    assert not is_of_package("/home/me/penstock/.venv/lib/python3.11/site-packages/pytest/a.py")
    assert not is_of_package("<string>")


def test_a_link_to_the_package_counts(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(Path(penstock.__file__).parent)
    assert is_of_package(str(tmp_path / "linked" / "errors.py"))


@pytest.mark.parametrize("name", ["penstock", "a penstock", "other"])
def test_the_name_of_a_directory_counts_for_nothing(tmp_path: Path, name: str) -> None:
    source = tmp_path / name / "module.py"
    code = compile("total = 0\nfor n in range(100):\n    total += n\n", str(source), "exec")
    assert cost_of(lambda: exec(code, {})).lines == 0
