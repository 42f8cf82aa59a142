"""What an executor of Spark imports does without librt, which its Python need not have."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

READ = """
import sys
sys.modules["librt"] = None
import penstock.spark.source
import penstock.storage.pages.page_reading
"""


def test_a_reader_needs_no_librt() -> None:
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
