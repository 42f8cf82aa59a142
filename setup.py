"""The part of the build that is not a table: which modules mypyc compiles, and when it does not.

The same source runs compiled and as plain Python. It is left uncompiled

* when PENSTOCK_PURE=1 is set while installing,
* in an editable install (`pip install -e`), so that src/ never holds a compiled module beside its
  newer source,
* when there is no C compiler or no Python.h, or when the compiler fails: then the build says so in
  one line on stderr (pip shows it with -v) and goes on.

A module that mypyc itself refuses is a mistake of ours, not of the machine, and ends the build.
`penstock --version` says which of the two was installed.
"""

import os
import shutil
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

# The hot modules, listed here and nowhere else.
HOT_MODULES = (
    "penstock.clock",
    "penstock.counts",
    "penstock.fast_crc",
    "penstock.message",
    "penstock.storage.log.record",
    "penstock.storage.log.record_writer",
    "penstock.storage.log.log_file",
    "penstock.storage.log.transaction_log",
    "penstock.storage.index.queue_segment",
    "penstock.storage.index.leases",
    "penstock.storage.index.queue_index",
    "penstock.storage.store.store_file",
    "penstock.storage.store.message_store",
    "penstock.storage.pages.page",
    "penstock.storage.pages.staging",
    "penstock.storage.pages.page_writer",
    "penstock.storage.pages.page_reading",
    "penstock.storage.pages.stream_meta",
    "penstock.storage.pages.persistent_queue",
    "penstock.storage.pages.streams",
    "penstock.storage.parts.stream_engine",
    "penstock.storage.parts.lease_engine",
    "penstock.storage.journal.record_types",
    "penstock.storage.journal.state",
    "penstock.storage.journal.journal",
    "penstock.storage.journal.recovery",
    "penstock.storage.parts.transaction",
    "penstock.storage.engine",
    "penstock.queues.queue_ram",
    "penstock.queues.rows",
    "penstock.queues.backing_queue",
    "penstock.queues.paging",
    "penstock.queues.variable_queue",
    "penstock.queues.priority_queue",
    "penstock.queues.memory_monitor",
    "penstock.queues.headers",
    "penstock.queues.thresholds",
    "penstock.queues.dead_letter",
    "penstock.queues.delays",
    "penstock.queues.amq_queue",
    "penstock.embedded.box_headers",
    "penstock.embedded.messages",
    "penstock.codec.fields",
    "penstock.codec.properties",
    "penstock.codec.frames",
    "penstock.access.permissions",
    "penstock.protocol.connection",
    "penstock.queues.raw_fields",
    "penstock.queues.amqp_headers",
    "penstock.queues.stream_cursor",
    "penstock.routing.exchange_types",
    "penstock.routing.router",
    "penstock.broker.topology",
    "penstock.broker.publish",
    "penstock.broker.dispatch",
    "penstock.broker.broker_queue",
    "penstock.broker.output",
    "penstock.broker.broker_stream",
    "penstock.broker.permissions",
    "penstock.broker.usage",
    "penstock.broker.queue_table",
    "penstock.broker.channel",
    "penstock.broker.channel_methods",
    "penstock.broker.connection_handler",
    "penstock.broker.background_tasks",
    "penstock.broker.exactly_once.batch_moves",
    "penstock.broker.in_flight",
    "penstock.broker.connection_facts",
    "penstock.server.poller",
    "penstock.server.control",
    "penstock.server.process_link",
    "penstock.server.tls_records",
    "penstock.server.hub",
    "penstock.server.login",
    "penstock.server.listener",
    "penstock.server.tls_pump",
)

# The one that compiles: its C runs against the librt that [project.dependencies] asks for.
COMPILER_REQUIREMENT = "mypy==2.4.1"

BUILDING = {"bdist_wheel", "build", "build_ext", "install"}


def c_compiler() -> str | None:
    """The command of a C compiler that exists, the one Python was built with first."""
    configured = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    for command in (configured, "cc", "gcc", "clang"):
        if shutil.which(command.split()[0]):
            return str(command)
    return None


def why_pure() -> str | None:
    """Why this build leaves the modules uncompiled; None if it compiles them."""
    if os.environ.get("PENSTOCK_PURE", "0") not in ("", "0"):
        return "PENSTOCK_PURE is set"
    if "editable_wheel" in sys.argv or "develop" in sys.argv:
        return "the install is editable"
    if c_compiler() is None:
        return "no C compiler was found (looked for CC, cc, gcc, clang)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h was not found (Debian and Ubuntu: apt install python3-dev)"
    return None


def say(reason: str) -> None:
    print(f"penstock: installing the pure Python build: {reason}", file=sys.stderr)


class BuildHotModules(build_ext):
    """Builds all of the hot modules or none: half of them would not import."""

    def run(self) -> None:
        try:
            super().run()
        except Exception:
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            say("the C compiler failed, with its output above")

    def build_extensions(self) -> None:
        """Compile an extension's C files side by side; they are linked when all are done."""
        compile_all = self.compiler.compile

        def compile_parallel(sources: list[str], **options: Any) -> list[str]:
            def compile_one(source: str) -> list[str]:
                return list(compile_all([source], **options))

            with ThreadPoolExecutor(os.cpu_count() or 1) as workers:
                return [name for names in workers.map(compile_one, sources) for name in names]

        self.compiler.compile = compile_parallel
        for extension in self.extensions:
            # A newer compiler with a new warning is no reason to do without.
            extension.extra_compile_args = [
                option for option in extension.extra_compile_args or [] if option != "-Werror"
            ]
        super().build_extensions()


def hot_files() -> list[str]:
    files = [Path("src", *module.split(".")).with_suffix(".py") for module in HOT_MODULES]
    return [str(file) for file in files if file.exists()]


def setup_arguments() -> dict[str, Any]:
    reason = why_pure()
    if reason is not None:
        if BUILDING & set(sys.argv):
            say(reason)
        return {}
    if not BUILDING & set(sys.argv):
        # Only asked what it needs: pip installs this into the build's own environment.
        return {"setup_requires": [COMPILER_REQUIREMENT]}
    os.environ.setdefault("CC", c_compiler() or "cc")
    from mypyc.build import mypycify

    mypycify_typed: Callable[..., list[Any]] = mypycify
    return {
        "ext_modules": mypycify_typed(
            hot_files(),
            opt_level="3",
            debug_level="1",
            multi_file=True,
            group_name="penstock",
        ),
        "cmdclass": {"build_ext": BuildHotModules},
    }


setup(**setup_arguments())
