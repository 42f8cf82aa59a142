"""Prints what a broker serves at /api/openapi.json: its HTTP API as a document of OpenAPI 3.1.

    python tools/openapi.py > openapi.json

It is made from penstock.http.endpoint_table, so no broker needs to run.
"""

import json
import sys

from penstock.http.api_pages import openapi
from penstock.http.endpoint_table import ENDPOINTS


def main() -> None:
    """Print the document, indented."""
    json.dump(json.loads(openapi(ENDPOINTS)), sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
