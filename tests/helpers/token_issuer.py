"""TokenIssuer: an issuer of tokens (JWT) with keys of its own, and a server of its JWKS."""

import json
import secrets
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

NOW_S = 1_700_000_000


class TokenIssuer:
    """Signs with the newest of its keys. asked: how often the JWKS was fetched."""

    def __init__(self) -> None:
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self._server: ThreadingHTTPServer | None = None
        self.asked = 0
        self.forms: list[str] = []  # of requests that had one
        self.answer: str | None = None  # instead of the JWKS
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.rotate()

    def rotate(self) -> None:
        """A new key, in place of all others."""
        self._keys = {secrets.token_hex(4): ec.generate_private_key(ec.SECP256R1())}

    @property
    def jwks(self) -> str:
        """Its public keys."""
        algorithm = jwt.algorithms.ECAlgorithm
        keys = [
            {**json.loads(algorithm.to_jwk(key.public_key())), "kid": kid, "alg": "ES256"}
            for kid, key in self._keys.items()
        ]
        return json.dumps({"keys": keys})

    def token(self, *scopes: str, headers: dict[str, Any] | None = None, **claims: Any) -> str:
        """A token of user "ada" for the resource server "rabbit", of an hour from NOW_S on, unless
        the claims say otherwise; None leaves one out."""
        kid, key = next(iter(self._keys.items()))
        said = {"sub": "ada", "aud": "rabbit", "exp": NOW_S + 3600, "scope": " ".join(scopes)}
        said |= claims
        given = {claim: value for claim, value in said.items() if value is not None}
        return jwt.encode(given, key, "ES256", headers={"kid": kid, **(headers or {})})

    def serve(self) -> str:
        """Serve the JWKS; return its address."""
        issuer = self

        class Answer(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                issuer.forms.append(self.rfile.read(size).decode())
                self.do_GET()

            def do_GET(self) -> None:
                if "?" in self.path:
                    issuer.forms.append(self.path.partition("?")[2])
                issuer.asked += 1
                issuer.may_answer.wait()
                body = (issuer.answer if issuer.answer is not None else issuer.jwks).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}/keys"

    def close(self) -> None:
        """Stop the server."""
        self.may_answer.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
