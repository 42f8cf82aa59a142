"""What a commit of staged rows says: its target, its tokens, and may the user write there?

    {"target": {"queue": name} or {"exchanges": [names]}, and "dead_letter_to": name or null,
     "tokens": [what staging answered, in the order of the rows],
     "mandatory_keys": [[exchange, routing key], ...] or null,
     "previous": number of the batch before, -1 or null, "keep_first": true or false}

A token is given back as it came. Its pages are what the vhost is told, and whether they are there
is for the vhost to say; that a token is of another batch is told here, by its place in the list.
"""

import json
from typing import Any, Final

from penstock.access.permissions import Identity
from penstock.http.http_errors import HttpError
from penstock.http.requests import no_access

EXPECTED: Final = (
    'expected {"target": {"queue": "q"} or {"exchanges": ["x"]}, "tokens": [...], '
    '"mandatory_keys": [["x", "key"]] or null}'
)
TARGET: Final = (
    'target: expected {"queue": "q"} or {"exchanges": ["x"]}, with "dead_letter_to": "q" or null'
)


def commit_args(body: dict[str, Any], query: str, batch: int) -> dict[str, Any]:
    """What commit_batch is asked with. HttpError 400."""
    unknown = set(body) - {"target", "tokens", "mandatory_keys", "previous", "keep_first"}
    if unknown or not isinstance(body.get("tokens"), list):
        what = f", unknown: {sorted(unknown)}" if unknown else ""
        raise HttpError(400, EXPECTED + what)
    keys = body.get("mandatory_keys")
    if keys is not None and not (isinstance(keys, list) and all(map(_is_key, keys))):
        raise HttpError(400, "mandatory_keys: expected [[exchange, routing key], ...] or null")
    previous, is_first_kept = body.get("previous"), body.get("keep_first", False)
    if previous is not None and (type(previous) is not int or not -1 <= previous < batch):
        raise HttpError(400, f"previous: given {previous!r}, expected -1 to {batch - 1}, or null")
    if not isinstance(is_first_kept, bool):
        raise HttpError(400, f"keep_first: given {is_first_kept!r}, expected true or false")
    pages: list[dict[str, object]] = []
    for number, token in enumerate(body["tokens"]):
        pages += _pages(token, number, query, batch)
    return {
        "query": query, "batch": batch, "target": body.get("target"), "pages": pages,
        "mandatory_keys": keys, "previous": previous, "keep_first": is_first_kept,
    }  # fmt: skip


def _pages(token: object, number: int, query: str, batch: int) -> list[dict[str, object]]:
    """Of one token."""
    if not isinstance(token, dict) or not isinstance(token.get("pages"), list):
        raise HttpError(400, f"token {number}: expected what POST answered, with its pages")
    if token.get("query") != query or token.get("batch") != batch:
        raise HttpError(
            400, f"token {number} is of query {token.get('query')!r} and batch "
            f"{token.get('batch')!r}, expected {query!r} and {batch}",
        )  # fmt: skip
    for page in token["pages"]:
        if not _is_page(page):
            raise HttpError(
                400, f"token {number}: expected pages with name, page_id, rows, bytes and "
                f"checksum, given {str(page)[:200]}",
            )  # fmt: skip
    return [{name: page[name] for name in _PAGE} for page in token["pages"]]


_PAGE: Final = {"name": str, "page_id": str, "rows": int, "bytes": int, "checksum": str}


def _is_page(page: object) -> bool:
    return isinstance(page, dict) and all(type(page.get(name)) is _PAGE[name] for name in _PAGE)


def _is_key(key: object) -> bool:
    return isinstance(key, list) and len(key) == 2 and all(isinstance(one, str) for one in key)


# ---- the target ----------------------------------------------------------------------------------


def checked_target(target: object, vhost: str, identity: Identity) -> None:
    """HttpError 400: it is none; 403: the user may not write all that it names."""
    for kind, name in _named(target):
        if not identity.may_write(name):
            raise no_access("write", kind, name, vhost, identity)


def may_write_to(identity: Identity, target: object) -> bool:
    """Whether the user may write all that a batch's target names: as the vhost told it."""
    if isinstance(target, str):
        target = json.loads(target)
    try:
        return all(identity.may_write(name) for _, name in _named(target))
    except HttpError:
        return False


def _named(target: object) -> list[tuple[str, str]]:
    """(queue or exchange, its name), all that is written to. HttpError 400."""
    if not isinstance(target, dict) or set(target) - {"queue", "exchanges", "dead_letter_to"}:
        raise HttpError(400, TARGET)
    queue, exchanges = target.get("queue"), target.get("exchanges")
    dead = target.get("dead_letter_to")
    named: list[tuple[str, str]] = []
    if isinstance(queue, str) and queue and "exchanges" not in target:
        named.append(("queue", queue))
    elif isinstance(exchanges, list) and exchanges and "queue" not in target:
        if not all(isinstance(name, str) for name in exchanges):
            raise HttpError(400, TARGET)
        named += [("exchange", name) for name in exchanges]
    else:
        raise HttpError(400, TARGET)
    if isinstance(dead, str) and dead:
        named.append(("queue", dead))
    elif dead is not None:
        raise HttpError(400, TARGET)
    return named
