"""Real HTTP servers on this machine, in threads, so that tests can run programs against them: model servers that list
their models and answer, and a server of model files."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


@dataclass
class ThreadedServer:
    port: int = 0
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    """Path, headers and body of each request."""
    cut_after: int | None = None
    """Close the connection after this many bytes of a body."""
    stall_after: int | None = None
    """Send nothing more after this many bytes of a body."""
    released: threading.Event = field(default_factory=threading.Event)
    """Ends all stalled requests."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def paths(self) -> list[str]:
        return [path for path, _, _ in self.requests]


@contextmanager
def threaded_server(answer: Callable[[str, dict[str, str], bytes], Reply]) -> Iterator[ThreadedServer]:
    state = ThreadedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.requests.append((self.path, headers, body))
            status, sent, data = answer(self.path, headers, body)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **sent}.items():
                self.send_header(name, value)
            self.end_headers()
            limit = state.cut_after if state.cut_after is not None else state.stall_after
            is_file = self.path.endswith(".gguf")
            self.wfile.write(data[:limit] if is_file else data)
            if is_file and state.stall_after is not None:
                state.released.wait(120)
            self.close_connection = True

        do_POST = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


def json_reply(value: Any, status: int = 200) -> Reply:
    return status, {"Content-Type": "application/json"}, json.dumps(value).encode()


def completion_reply(text: str, **message: Any) -> Reply:
    choice = {
        "index": 0,
        "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
        "message": {"role": "assistant", "content": text, **message},
    }
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return json_reply(
        {"id": "c1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


def stream_reply(text: str) -> Reply:
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    delta = {**chunk, "choices": [{"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}]}
    end = {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = "".join(f"data: {json.dumps(event)}\n\n" for event in (delta, end)) + "data: [DONE]\n\n"
    return 200, {"Content-Type": "text/event-stream"}, events.encode()


def answer_chat(text: str, body: bytes) -> Reply:
    return stream_reply(text) if json.loads(body).get("stream") else completion_reply(text)


def ollama_answers(*models: str, text: str = "Hello from Ollama.") -> Callable[[str, dict[str, str], bytes], Reply]:
    """Ollama's list of models and its chat API in OpenAI's form."""

    def answer(path: str, headers: dict[str, str], body: bytes) -> Reply:
        if path == "/api/tags":
            return json_reply({"models": [_ollama_model(name) for name in models]})
        if path == "/v1/chat/completions":
            return answer_chat(text, body)
        return json_reply({"error": "not found"}, 404)

    return answer


def _ollama_model(name: str) -> dict[str, Any]:
    family = "nomic-bert" if "embed" in name else "qwen3"
    return {
        "name": name,
        "model": name,
        "modified_at": "2026-10-01T12:00:00Z",
        "size": 5_225_388_164,
        "digest": sha256(name.encode()).hexdigest(),
        "details": {"format": "gguf", "family": family, "parameter_size": "8.2B", "quantization_level": "Q4_K_M"},
    }


def openai_answers(
    owner: str, *models: str, text: str = "Hello.", key: str | None = None
) -> Callable[[str, dict[str, str], bytes], Reply]:
    """The list of models and the chat API of LM Studio, llama.cpp and vLLM."""

    def answer(path: str, headers: dict[str, str], body: bytes) -> Reply:
        if key is not None and headers.get("authorization") != f"Bearer {key}":
            return json_reply({"error": {"message": "invalid api key", "type": "invalid_request_error"}}, 401)
        if path == "/v1/models":
            data = [{"id": name, "object": "model", "created": 1, "owned_by": owner} for name in models]
            return json_reply({"object": "list", "data": data})
        if path == "/v1/chat/completions":
            return answer_chat(text, body)
        return json_reply({"error": "not found"}, 404)

    return answer


def hub_answers(
    files: dict[str, bytes], *, ranges: bool = True, digests: dict[str, str] | None = None, token: str | None = None
) -> Callable[[str, dict[str, str], bytes], Reply]:
    """A server of model files: the list of a repository `owner/model`, and its files, in parts if asked for."""

    def answer(path: str, headers: dict[str, str], body: bytes) -> Reply:
        if token is not None and headers.get("authorization") != f"Bearer {token}":
            return json_reply({"error": "Invalid username or password."}, 401)
        if path.startswith("/api/models/owner/model/tree/main"):
            return json_reply([_file_entry(name, data, (digests or {}).get(name)) for name, data in files.items()])
        name = path.removeprefix("/owner/model/resolve/main/")
        if name not in files:
            return json_reply({"error": "Repository not found"}, 404)
        data, requested = files[name], headers.get("range")
        if requested is None or not ranges:
            return 200, {"Content-Type": "application/octet-stream"}, data
        start = int(requested.removeprefix("bytes=").removesuffix("-"))
        return 206, {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:]

    return answer


def _file_entry(name: str, data: bytes, digest: str | None) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "oid": "f" * 40, "size": len(data), "path": name}
    if name.endswith(".gguf"):
        oid = digest or sha256(data).hexdigest()
        entry["lfs"] = {"oid": oid, "size": len(data), "pointerSize": 135}
    return entry
