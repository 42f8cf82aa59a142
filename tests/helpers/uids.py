"""What crash tests know messages by: a uid, from which the body can be made again."""

Content = tuple[int, int, bytes]  # uid, size of the body, header

_BODIES: dict[tuple[int, int], bytes] = {}


class Violation(AssertionError):
    """A promise was broken."""


def body_of(uid: int, size: int) -> bytes:
    """The body of message `uid`: `<uid>:` again and again, cut at `size` bytes."""
    found = _BODIES.get((uid, size))
    if found is None:
        if len(_BODIES) > 4096:
            _BODIES.clear()
        word = b"%d:" % uid
        found = _BODIES[uid, size] = (word * (size // len(word) + 1))[:size]
    return found
