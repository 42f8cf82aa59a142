"""What a process of Spark takes out of garbage collection at first, and what stays in it."""

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


PLANNING = """
import gc, sys
from importlib.machinery import ModuleSpec
from pyspark.sql.types import BinaryType, StructField, StructType
from penstock.spark.data_source import PenstockDataSource
from penstock.spark.sink import PenstockWriter

schema = StructType([StructField("value", BinaryType())])
options = {"url": "amqp://guest:guest@h/", "queue": "q"}
source = PenstockDataSource({"url": "http://h", "subscribe": "s"})
source.reader(schema)
writer = PenstockWriter(options, schema, False)
assert gc.get_freeze_count() == 0  # a user's process
sys.modules["__main__"].__spec__ = ModuleSpec("pyspark.daemon", None)
CALL
assert gc.get_freeze_count() > 10_000
"""


@pytest.mark.parametrize("call", ["source.reader(schema)", "writer.commit([])"])
def test_planning_and_committing_keep_what_there_is(call: str) -> None:
    subprocess.run([sys.executable, "-c", PLANNING.replace("CALL", call)], check=True)
