"""What describes the HTTP API, made from the table of endpoints: OpenAPI, a page, the reference.

    openapi(endpoints)      the document of OpenAPI 3.1, served at /api/openapi.json
    index(endpoints)        a page for people, served at /api/index.html
    reference(endpoints)    the rows of the table in docs/reference/http.md

None of them says anything that a row does not say. The page has no script, and may load nothing.
"""

import html
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from penstock.http.endpoint import OPENED, SEEN, Answer, ApiRequest, Endpoint, described_names
from penstock.native import VERSION
from penstock.operation_table import (
    ADMINISTRATORS,
    MANAGERS,
    POLICYMAKERS,
    TEXTS,
    WATCHERS,
    Argument,
)

OPENAPI: Final = "openapi"
INDEX: Final = "index"
PREFIX: Final = "/api/"
WHO: Final[Mapping[tuple[str, ...], str]] = {
    (): "anybody",
    MANAGERS: "management",
    POLICYMAKERS: "policymaker",
    WATCHERS: "monitoring",
    ADMINISTRATORS: "administrator",
}
CSP: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; \
frame-ancestors 'none'"
SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    "text": {"type": "string"},
    "name": {"type": "string", "maxLength": 255},
    "true or false": {"type": "boolean"},
    "object": {"type": "object"},
    TEXTS: {"type": "array", "items": {"type": "string"}},
}
ERROR: Final = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
    "required": ["error", "reason"],
}  # fmt: skip
# Status -> what it means here.
REFUSALS: Final[Mapping[int, str]] = {
    400: "something in the request is wrong",
    401: "no or a wrong password, or the user may not",
    404: "what the address names is not there",
    429: "the user has too many requests under way",
    503: "the broker, or the vhost, does not answer",
}


async def openapi_document(asked: ApiRequest) -> object:
    """Return the document of OpenAPI."""
    return Answer(200, asked.page(OPENAPI))


async def index_page(asked: ApiRequest) -> object:
    """Return the page that lists the endpoints."""
    headers = {
        "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": CSP,
        "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin",
    }  # fmt: skip
    return Answer(200, asked.page(INDEX), headers)


def needs(row: Endpoint) -> str:
    """Return in words who may call it."""
    found = WHO[row.tags]
    if "{vhost}" in row.path and row.vhost in (OPENED, SEEN):
        found += "; " + row.vhost
    return found


def _by_path(endpoints: Iterable[Endpoint]) -> dict[str, list[Endpoint]]:
    found: dict[str, list[Endpoint]] = {}
    for row in endpoints:
        found.setdefault(row.path, []).append(row)
    return found


# ---- OpenAPI -------------------------------------------------------------------------------------


def openapi(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the document, as JSON."""
    paths = {
        PREFIX + path: {row.method.lower(): _operation(row) for row in rows}
        for path, rows in sorted(_by_path(endpoints).items())
    }
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Penstock", "version": VERSION,
            "description": "RabbitMQ's HTTP API, and what Penstock adds below /api/penstock.",
        },
        "paths": paths,
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {"Error": ERROR},
        },
        "security": [{"basic": []}],
    }  # fmt: skip
    return json.dumps(document, separators=(",", ":")).encode()


def _operation(row: Endpoint) -> dict[str, Any]:
    words = row.path.replace("{", "").replace("}", "").replace("/", "_").replace("-", "_")
    found: dict[str, Any] = {
        "operationId": f"{row.method.lower()}_{words}",
        "summary": row.help,
        "description": f"For: {needs(row)}.",
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in described_names(row.path)
            ),
            *(
                {"name": name, "in": "query", "description": meaning, "schema": {"type": "string"}}
                for name, meaning in row.query.items()
            ),
        ],
        "responses": _responses(row),
    }  # fmt: skip
    if row.body is not None:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {one.name: schema_of(one) for one in row.body},
        }
        required = [one.name for one in row.body if one.is_required]
        if required:
            schema["required"] = required
        found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if row.is_open:
        found["security"] = []
    return found


def _responses(row: Endpoint) -> dict[str, Any]:
    statuses = {row.status} if row.method == "GET" else {200, 201, 204, row.status}
    answers: dict[str, Any] = {
        str(status): {
            "description": row.help,
            **({"content": {row.media_type: {}}} if status == 200 else {}),
        }
        for status in sorted(statuses)
    }
    refused: dict[str, Any] = {
        str(status): {
            "description": meaning,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
        for status, meaning in REFUSALS.items()
    }  # fmt: skip
    del refused["401"]["content"]  # as RabbitMQ's: empty if no password was given
    if row.path.startswith("health"):
        refused["503"] = {"description": "the check failed", "content": {row.media_type: {}}}
    return answers | refused


def schema_of(member: Argument) -> dict[str, Any]:
    """Return the schema of a member of a body; {} if its kind is not one of JSON's."""
    words = member.kind.words
    found = dict(SCHEMAS.get(words, {}))
    if words.startswith("whole number"):
        found = {"type": "integer"}
        if member.kind.low is not None:
            found["minimum"] = int(member.kind.low)
    if member.meaning:
        found["description"] = member.meaning
    return found


# ---- for people ----------------------------------------------------------------------------------


def index(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the page."""
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells) + "</tr>\n"
        for cells in _cells(endpoints)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<title>Penstock: HTTP API</title><style>body{font:14px/1.45 system-ui,sans-serif;"
        "margin:2em}td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}"
        "td:nth-child(2){font-family:ui-monospace,monospace}</style></head><body><main>"
        f"<h1>HTTP API of Penstock {html.escape(VERSION)}</h1>"
        '<p>Also as <a href="openapi.json">OpenAPI</a>. Names in addresses are percent-encoded, '
        '"/" as %2F.</p><table><thead><tr><th scope="col">Method</th><th scope="col">Address</th>'
        '<th scope="col">For users with the tag</th><th scope="col">What it does</th></tr>'
        "</thead><tbody>\n"
        f"{rows}</tbody></table></main></body></html>\n"
    ).encode()


def reference(endpoints: Iterable[Endpoint]) -> list[str]:
    """Return the rows of the table in the reference."""
    return [
        f"| {method} | `{address}` | {who} | {line} |\n"
        for method, address, who, line in _cells(endpoints)
    ]


def _cells(endpoints: Iterable[Endpoint]) -> list[tuple[str, str, str, str]]:
    return [
        (row.method, PREFIX + row.path, needs(row), row.help)
        for _, rows in sorted(_by_path(endpoints).items())
        for row in rows
    ]


MAKERS: Final[Mapping[str, Callable[[Iterable[Endpoint]], bytes]]] = {
    OPENAPI: openapi, INDEX: index,
}  # fmt: skip
