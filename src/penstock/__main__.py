"""`python -m penstock` is the command `penstock`.

Useful where the command is not on the path, or to choose which Python runs it. The exit codes are
those of the command: see penstock.cli.main.
"""

import sys

from penstock.errors import install_advice

EX_UNAVAILABLE = 69  # of penstock.cli.main, which is not imported without click


def main() -> int:
    """Run the command and return its exit code: 69 where the packages of commands are missing, as
    after `pip install penstock`, which is the library alone."""
    try:
        from penstock.cli.main import main as command
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        sys.stderr.write(
            "penstock: the library is installed without its commands: "
            f"{install_advice('server')}, or with [cli] for the commands without the broker\n"
        )
        return EX_UNAVAILABLE
    return command()


if __name__ == "__main__":
    sys.exit(main())
