"""What a task does once in the process that runs it, which Spark keeps for later tasks.

Spark collects garbage in that process after each task. With the modules that a task imports this is
25 ms of CPU each time, several times what it costs to read a thousand records, and finds nothing:
modules stay. So the first task takes what there is out of later collections.
"""

import gc

from pyspark import TaskContext


def keep_imports() -> None:
    """Keep all objects that are in use now for good, if this is the first task of its process. Does
    nothing outside of a task: other processes are a user's."""
    if TaskContext.get() is not None and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
