"""`python -m penstock` is the command `penstock`.

Useful where the command is not on the path, or to choose which Python runs it. The exit codes are
those of the command: see penstock.cli.main.
"""

import sys

from penstock.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
