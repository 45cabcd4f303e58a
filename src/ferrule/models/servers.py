"""Model servers on this machine: Ollama, LM Studio, llama.cpp and vLLM, and the models they offer.

They are found by short requests to their usual ports, all at the same time. No other address is contacted unless a
variable names it.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

from ferrule.models.keys import key_variable

PROBE_TIMEOUT: Final = 5.0
"""Seconds for the servers to list their models: a machine that is busy with a model answers late. On this machine a
port without a server is known immediately."""
_CONNECT_TIMEOUT: Final = 1.0
_MAX_LISTING: Final = 2_000_000
"""Bytes of a list of models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServer:
    prefix: str
    title: str
    port: int
    variable: str
    """Names another address."""
    path: str = "/v1/models"
    owner: str = ""
    """What the server writes into `owned_by`; other programs use the same port."""
    start: str

    def url(self, environ: Mapping[str, str]) -> str:
        """Return the server's address, without a path."""
        address = environ.get(self.variable, "").strip().rstrip("/").removesuffix("/v1")
        if not address:
            return f"http://127.0.0.1:{self.port}"
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host = parts.hostname or "127.0.0.1"
        host = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
        port = parts.port or (443 if parts.scheme == "https" else self.port)
        return f"{parts.scheme}://{host}:{port}{parts.path}"


LOCAL_SERVERS: Final[Mapping[str, LocalServer]] = {
    server.prefix: server
    for server in (
        LocalServer(
            prefix="ollama",
            title="Ollama",
            port=11434,
            variable="OLLAMA_HOST",
            path="/api/tags",
            start="ollama serve",
        ),
        LocalServer(
            prefix="lmstudio", title="LM Studio", port=1234, variable="LMSTUDIO_BASE_URL", start="lms server start"
        ),
        LocalServer(
            prefix="llamacpp",
            title="llama.cpp",
            port=8080,
            variable="LLAMACPP_BASE_URL",
            owner="llamacpp",
            start="llama-server -m MODEL.gguf",
        ),
        LocalServer(
            prefix="vllm", title="vLLM", port=8000, variable="VLLM_BASE_URL", owner="vllm", start="vllm serve MODEL"
        ),
    )
}


@dataclass(slots=True, kw_only=True)
class ServerState:
    server: LocalServer
    url: str
    models: Sequence[str] = ()
    problem: str = "it did not answer in time"
    """Why it cannot be used; empty if it can."""

    @property
    def specs(self) -> list[str]:
        return [f"{self.server.prefix}:{name}" for name in self.models]


def find_servers(environ: Mapping[str, str], prefixes: Sequence[str] = tuple(LOCAL_SERVERS)) -> list[ServerState]:
    """Return the state of each server, asked at the same time."""
    servers = [LOCAL_SERVERS[prefix] for prefix in prefixes]
    states = [ServerState(server=server, url=server.url(environ)) for server in servers]
    # Daemon threads: a server that answers slowly must not keep the program from ending.
    threads = [threading.Thread(target=_probe, args=(state, environ), daemon=True) for state in states]
    deadline = time.monotonic() + PROBE_TIMEOUT
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    # Copies: a thread that is late must not change what was reported.
    return [replace(state) for state in states]


def _probe(state: ServerState, environ: Mapping[str, str]) -> None:
    server = state.server
    try:
        listing = _request_listing(state.url + server.path, environ.get(key_variable(server.prefix)))
        state.models = _read_models(listing, server)
        state.problem = "" if state.models else "it has no models"
    except _NotAModelServer as error:
        state.problem = str(error)
    except (OSError, http.client.HTTPException):
        state.problem = f"no server at {state.url}"
    except ValueError:
        state.problem = f"something else answers at {state.url}"


class _NotAModelServer(Exception):
    """What answers cannot be used."""


def _request_listing(url: str, key: str | None) -> Any:
    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=_CONNECT_TIMEOUT)
    try:
        connection.connect()
        connection.sock.settimeout(PROBE_TIMEOUT)
        connection.request("GET", parts.path, headers={"Authorization": f"Bearer {key}"} if key else {})
        response = connection.getresponse()
        body = response.read(_MAX_LISTING)
    finally:
        connection.close()
    if response.status in (401, 403):
        raise _NotAModelServer("it needs a key")
    if response.status != 200:
        raise _NotAModelServer(f"something else answers at {url} (status {response.status})")
    return json.loads(body)


def _read_models(listing: Any, server: LocalServer) -> list[str]:
    """Return the names of the models that can talk; raise ValueError for anything but a list of models."""
    entries = listing.get("models" if server.path == "/api/tags" else "data") if isinstance(listing, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("not a list of models")
    if server.owner and not any(entry.get("owned_by") == server.owner for entry in entries):
        raise ValueError("the models of another server")
    names = [entry.get("name") if server.path == "/api/tags" else entry.get("id") for entry in entries]
    models = []
    for name, entry in zip(names, entries, strict=True):
        details = entry.get("details")
        family = str(details.get("family", "")) if isinstance(details, dict) else ""
        is_embedding_model = "embed" in str(name).casefold() or "bert" in family.casefold()
        if isinstance(name, str) and name and not is_embedding_model:
            models.append(name)
    return models
