"""Passwords: what is kept of one, and whether a given one fits it.

A password is kept as scrypt's hash of it with 16 random bytes of salt, as text:

    scrypt$<log2 n>$<r>$<p>$<salt, base64>$<hash of 32 bytes, base64>

which takes about 50 ms and 16 MiB on purpose. Both functions know nothing but their arguments, so
any thread may run them, and a server runs them off its loop.

Not here: whose password it is, and what is remembered of a right one (access.known_users).
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

SCRYPT_LOG2_N: Final = 14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
# Of what a file may ask for: 1 GiB, some 4 s.
SCRYPT_LOG2_N_MAX: Final = 20


def hash_password(password: bytes, *, salt: bytes, log2_n: int = SCRYPT_LOG2_N) -> str:
    """The text that `verify` takes; as drawn above."""
    hashed = _scrypt(password, salt, log2_n, SCRYPT_R, SCRYPT_P)
    parts = (base64.b64encode(salt).decode(), base64.b64encode(hashed).decode())
    return "$".join(("scrypt", str(log2_n), str(SCRYPT_R), str(SCRYPT_P), *parts))


def verify(password: bytes, hashed: str) -> bool:
    """Is it the password of that hash? False too if `hashed` is no text of `hash_password`.

    Uses nothing but its arguments, so any thread may run it."""
    try:
        kind, log2_n, r, p, salt, wanted = hashed.split("$")
        if kind != "scrypt" or not 1 <= int(log2_n) <= SCRYPT_LOG2_N_MAX:
            return False
        given = _scrypt(
            password, base64.b64decode(salt, validate=True), int(log2_n), int(r), int(p)
        )
        return hmac.compare_digest(given, base64.b64decode(wanted, validate=True))
    except (ValueError, binascii.Error):
        return False


def _scrypt(password: bytes, salt: bytes, log2_n: int, r: int, p: int) -> bytes:
    memory_bytes = 128 * r * ((1 << log2_n) + p + 2)
    return hashlib.scrypt(
        password, salt=salt, n=1 << log2_n, r=r, p=p, maxmem=memory_bytes, dklen=32
    )
