"""What a process of Spark's Python does once, which Spark keeps for later tasks, plans and commits.

Spark collects garbage in that process after each of them. With the modules that a task imports this
is 25 ms of CPU each time, several times what it costs to read a thousand records, and finds
nothing: modules stay. So the first one takes what there is out of later collections.
"""

import gc
import sys

from pyspark import TaskContext

DAEMON = "pyspark.daemon"  # what a process runs that Spark keeps


def keep_imports() -> None:
    """Keep all objects that are in use now for good, if Spark's daemon made this process and it has
    not done so yet. Does nothing elsewhere: other processes are a user's."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_kept = getattr(main, "name", "") == DAEMON or TaskContext.get() is not None
    if is_kept and not gc.get_freeze_count():
        gc.collect()
        gc.freeze()
