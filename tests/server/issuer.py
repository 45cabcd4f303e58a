"""An authorization server on loopback, which signs tokens."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec


class Issuer:
    """Its keys, and how often they were asked for."""

    def __init__(self) -> None:
        self.url = ""
        self.key_requests = 0
        self._keys = {"first": ec.generate_private_key(ec.SECP256R1())}

    def add_key(self, key_id: str) -> None:
        self._keys[key_id] = ec.generate_private_key(ec.SECP256R1())

    def sign(self, key_id: str = "first", **claims: Any) -> str:
        now = time.time()
        values: dict[str, Any] = {"iss": self.url, "sub": "ada", "aud": "https://tools.example.com/mcp", "org": "acme"}
        values |= {"iat": now, "exp": now + 60}
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
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/.well-known/oauth-authorization-server":
                content: Any = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/keys"}
            else:
                content = issuer.describe_keys()
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            pass

    issuer = Issuer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
