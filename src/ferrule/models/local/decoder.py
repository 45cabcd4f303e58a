"""The weights in memory, and the one thread that decodes with them.

Decoding takes seconds, so it never happens in the event loop. Requests queue for the thread; one that is cancelled
while it waits is never begun, and one that is being decoded stops within a few tokens.
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
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ferrule.errors import ModelRefused, RequestTooLong, SetupError
from ferrule.messages import Usage
from ferrule.models.model import TextSink

_BATCH = 256
"""Tokens of a prompt that are read at once: between two batches it can be stopped."""


class NotTaken(Exception):
    """The decoder does not take a request as it is; a schema that it has no grammar for, most likely."""


@dataclass(slots=True)
class Completion:
    """What was decoded."""

    text: str = ""
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    error: dict[str, Any] = field(default_factory=dict)


class Decoder:
    """A GGUF model. Loaded when first used, freed by `aclose`."""

    def __init__(self, path: Path, *, context: int) -> None:
        self._path = path
        self._context = context
        self._server: Any = None
        self._closed = False
        self._stops: set[threading.Event] = set()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ferrule-local-model")

    async def chat(self, body: dict[str, Any], on_text: TextSink | None = None) -> Completion:
        """Decode a request of OpenAI's chat form; cancelling the task stops it."""
        if self._closed:
            raise ModelRefused("The local model was closed.")
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | None] = asyncio.Queue()
        stop = threading.Event()

        def hand_on(piece: str | None) -> None:
            with suppress(RuntimeError):  # nobody listens any more: the loop was closed
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        self._stops.add(stop)
        running = self._thread.submit(self._decode, body, hand_on, stop)
        running.add_done_callback(lambda _: hand_on(None))
        try:
            while (piece := await pieces.get()) is not None:
                if on_text is not None:
                    on_text(piece)
            return running.result()
        finally:
            stop.set()
            running.cancel()
            self._stops.discard(stop)

    async def aclose(self) -> None:
        """Stop what is being decoded and free the memory."""
        if self._closed:
            return
        self._closed = True
        for stop in list(self._stops):
            stop.set()
        await asyncio.wrap_future(self._thread.submit(self._free))
        self._thread.shutdown(wait=False)

    # In the thread

    def _decode(self, body: dict[str, Any], hand_on: Callable[[str | None], None], stop: threading.Event) -> Completion:
        done = Completion()
        pieces: list[str] = []

        def on_chunk(chunk: dict[str, Any]) -> bool:
            """Whether to stop; what is raised in here is lost."""
            _note(chunk, done)
            piece = _text_of(chunk)
            if piece:
                pieces.append(piece)
                hand_on(piece)
            return stop.is_set()

        if not self._closed and not stop.is_set():
            streamed = {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
            try:
                self._loaded().handle_chat_completions({**body, **streamed}, on_chunk)
            except ValueError as error:
                raise NotTaken(str(error)) from None
        if self._closed:
            raise ModelRefused("The local model was closed while it was asked.")
        _refuse(done.error)
        done.text = "".join(pieces)
        return done

    def _loaded(self) -> Any:
        if self._server is None:
            self._server = _load(self._path, self._context)
        return self._server

    def _free(self) -> None:
        self._server = None


def _load(path: Path, context: int) -> Any:
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _free_cores()
    params.n_batch = params.n_ubatch = _BATCH
    params.cache_ram_mib = 0  # prompts of the past are kept in up to 8 GB otherwise
    params.warmup = False
    params.verbosity = 0
    params.ui = False
    # It cannot help serving HTTP. On a socket whose file is gone at once, nobody can reach it.
    with TemporaryDirectory() as folder:
        params.hostnames = [str(Path(folder) / "model.sock")]
        try:
            server = xllamacpp.Server(params)
        except RuntimeError:
            raise SetupError(f"{str(path)!r} cannot be loaded: it is not a GGUF model that llama.cpp knows.") from None
    # A server that is freed before it has answered anything hangs.
    server.handle_chat_completions({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1})
    return server


def _free_cores() -> int:
    """Threads wait for each other at every layer: one that has to share its core makes all of them slow."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, round(cores - os.getloadavg()[0]))


def _text_of(chunk: dict[str, Any]) -> str:
    choices = chunk.get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


def _note(chunk: dict[str, Any], done: Completion) -> None:
    """Take down what a chunk says beside its text."""
    choices = chunk.get("choices") or [{}]
    done.finish_reason = choices[0].get("finish_reason") or done.finish_reason
    done.error = chunk.get("error") or done.error
    if used := chunk.get("usage"):
        cached = (used.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        done.usage = Usage(
            requests=1,
            input_tokens=used.get("prompt_tokens", 0),
            output_tokens=used.get("completion_tokens", 0),
            cached_tokens=cached,
        )


def _refuse(error: dict[str, Any]) -> None:
    if error.get("type") == "exceed_context_size_error":
        raise RequestTooLong(
            f"The conversation has {error.get('n_prompt_tokens')} tokens and the local model's window "
            f"{error.get('n_ctx')}. Shorten it, offer fewer tools, or make the model with a larger `context`."
        )
    if error:
        raise ModelRefused(f"The local model refused the request: {error.get('message', error)}")
