"""What the first task of a process takes out of garbage collection, and what stays in it."""

import subprocess
import sys

import pytest

pytest.importorskip("pyspark")

PROGRAM = """
import gc, weakref
from pyspark import TaskContext
from penstock.spark.task_worker import keep_imports

keep_imports()
assert gc.get_freeze_count() == 0  # no task
TaskContext._taskContext = TaskContext()

class Node:
    pass

def of_a_cycle():
    node = Node()
    node.itself = node
    return weakref.ref(node)

before = of_a_cycle()
keep_imports()
assert before() is None
kept = gc.get_freeze_count()
assert kept > 10_000, kept
later = of_a_cycle()
keep_imports()
assert gc.get_freeze_count() == kept  # once
gc.collect()
assert later() is None
"""


def test_the_first_task_of_a_process_keeps_what_there_is() -> None:
    """In a process of its own, for all objects of this one would stay too."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
