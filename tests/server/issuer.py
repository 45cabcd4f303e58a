"""An authorization server on loopback, which signs tokens."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec

from tests.support.http_servers import Answer, Request, json_answer, serve_http_in_thread

TOKEN_LIFETIME = 600


class Issuer:
    """Its keys, and how often they were asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.requests = self.key_requests = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self._keys = {"first": ec.generate_private_key(ec.SECP256R1())}

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let its answers wait."""
        self.may_answer.clear()
        try:
            yield
        finally:
            self.may_answer.set()

    @property
    def host(self) -> str:
        """As in the names of its users."""
        return self.url.partition("://")[2]

    def add_key(self, key_id: str) -> None:
        self._keys[key_id] = ec.generate_private_key(ec.SECP256R1())

    def sign(self, key_id: str = "first", **claims: Any) -> str:
        now = time.time()
        values: dict[str, Any] = {"iss": self.url, "sub": "ada", "aud": "https://tools.example.com/mcp", "org": "acme"}
        values |= {"iat": now, "exp": now + TOKEN_LIFETIME}
        values = {name: value for name, value in {**values, **claims}.items() if value is not None}
        return jwt.encode(values, self._keys[key_id], "ES256", headers={"kid": key_id})

    def describe_keys(self) -> dict[str, Any]:
        self.key_requests += 1
        keys = []
        for key_id, key in self._keys.items():
            values = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key()))
            keys.append({**values, "kid": key_id, "alg": "ES256", "use": "sig"})
        return {"keys": keys}


@contextmanager
def run_issuer() -> Iterator[Issuer]:
    def answer(request: Request) -> Answer:
        issuer.requests += 1
        issuer.may_answer.wait()
        if request.path == "/.well-known/oauth-authorization-server":
            return json_answer({"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"})
        return json_answer(issuer.describe_keys())

    issuer = Issuer()
    with serve_http_in_thread(answer) as server:
        issuer.url = server.url
        yield issuer
