"""The owner of a worker process, as the worker sees it: who sends calls, answers questions, and may die.

Only one thread can read from the owner at a time, while several may wait for something: the main thread for the
next call, threads of a function for the results of the tools they called. So whoever waits first listens for all.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from ferrule.call import ToolExecutionResult
from ferrule.content import plain_json
from ferrule.errors import ExecutionFailed
from ferrule.executors.worker.failure import read_failure
from ferrule.executors.worker.frames import HEADER_SIZE, Answer, Call, Question, decode_from_owner, encode, length_of


class Owner:
    """The other end of the conversation."""

    def __init__(self, connection: socket.socket, begun: int) -> None:
        self._connection, self._begun = connection, begun
        self._sending = threading.Lock()
        self._listening = threading.Condition()
        self._someone_listens = False
        self._calls: deque[Call | None] = deque()
        self._questions: dict[int, Future[Answer]] = {}
        self._question_numbers = count(1)
        self.current = 0
        """The number of the call that runs."""

    def next_call(self) -> Call | None:
        """The call that begins now; None when the owner has said goodbye."""
        self._listen_until(lambda: bool(self._calls))
        call = self._calls.popleft()
        self.current = call.number if call is not None else 0
        if call is not None:
            os.write(self._begun, b".")
        return call

    def finish(self, encoded: bytes) -> None:
        """Send how the call ended. What a thread of it still wants after that is refused."""
        self.current = 0
        for waiting in list(self._questions.values()):
            waiting.cancel()
        self._questions.clear()
        self.send(encoded)

    def send(self, encoded: bytes) -> None:
        with self._sending:
            self._connection.sendall(encoded)

    def ask(self, number: int, tool_name: str, params: dict[str, Any], action: str | None) -> ToolExecutionResult:
        """Have another tool called, and wait for the result."""
        if number != self.current:
            raise ExecutionFailed("The call that started this thread has ended: it can call no other tools.")
        question, waiting = next(self._question_numbers), Future[Answer]()
        frame = Question(number, question, str(tool_name), _plain(params), None if action is None else str(action))
        self._questions[question] = waiting
        self.send(encode(frame))
        self._listen_until(waiting.done)
        answer = waiting.result()
        if answer.failure is not None:
            raise read_failure(answer.failure)
        assert answer.result is not None
        return answer.result

    async def ask_async(
        self, number: int, tool_name: str, params: dict[str, Any], action: str | None
    ) -> ToolExecutionResult:
        import asyncio  # here it is loaded already, but most workers do without

        return await asyncio.to_thread(self.ask, number, tool_name, params, action)

    def _listen_until(self, it_happened: Callable[[], bool]) -> None:
        with self._listening:
            while not it_happened():
                if self._someone_listens:
                    self._listening.wait()
                    continue
                self._someone_listens = True
                self._listening.release()
                try:
                    frame = self._receive()
                finally:
                    self._listening.acquire()
                    self._someone_listens = False
                self._take_in(frame)
                self._listening.notify_all()

    def _take_in(self, frame: Call | Answer | None) -> None:
        if isinstance(frame, Answer):
            waiting = self._questions.pop(frame.question, None)
            if waiting is not None and waiting.set_running_or_notify_cancel():
                waiting.set_result(frame)
        else:
            self._calls.append(frame)

    def _receive(self) -> Call | Answer | None:
        header = self._read(HEADER_SIZE)
        payload = self._read(length_of(header)) if header else b""
        frame: Call | Answer | None = decode_from_owner(payload) if payload else None
        return frame

    def _read(self, size: int) -> bytearray:
        """Exactly so many bytes, or none when the owner has said goodbye."""
        received = bytearray(size)
        left = memoryview(received)
        while left:
            got = self._connection.recv_into(left)
            if not got:
                return bytearray()
            left = left[got:]
        return received


def _plain(params: dict[str, Any]) -> dict[str, Any]:
    plain = plain_json(params)
    if not isinstance(plain, dict):
        raise ExecutionFailed(
            "The arguments for another tool must be what JSON can say: numbers, texts, lists of them."
        )
    return plain


def meet_owner(begun: int) -> Owner:
    """Take the channels that came as standard input and output, and put harmless ones in their place.

    `begun` is the pipe in which the owner looks up whether a call was begun.
    """
    os.set_inheritable(begun, False)
    connection, lifeline = socket.socket(fileno=os.dup(0)), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)
    _die_with_owner(lifeline)
    return Owner(connection, begun)


def _die_with_owner(lifeline: int) -> None:
    def wait() -> None:
        os.read(lifeline, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="ferrule-lifeline", daemon=True).start()
    if hasattr(fcntl, "F_SETSIG"):
        # A thread cannot run while a function computes in C and holds the interpreter. Linux can send the signal
        # itself when the pipe breaks, and to the whole group.
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
