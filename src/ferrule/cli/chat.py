"""`ferrule chat`: a conversation with tools.

The terminal has the main thread, so that lines can be edited as usual; runs have a loop in a thread of their own.
Ctrl-C stops what is being done, and at an empty prompt nothing: Ctrl-D or /quit ends the conversation.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sys
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from ferrule.agent import AgentAnswer, AgentState
from ferrule.cli import show
from ferrule.cli.asking import ask_at_the_terminal, read_line
from ferrule.cli.making import make_agent, model_of
from ferrule.cli.session import USAGE, Session, fail
from ferrule.cli.talking import PersonAtTheTerminal, Voice, say_what_it_waits_for
from ferrule.cli.terminal import complain, say
from ferrule.errors import FerruleError
from ferrule.library import UnifiedToolLibrary
from ferrule.messages import Message
from ferrule.models import choose_model, close_model

T = TypeVar("T")

HELP = """\
/tools          the tools there are
/model [NAME]   which model answers; with a name, change it
/history        what was said so far
/new            begin anew
/quit           end (or Ctrl-D)
Ctrl-C stops what is being done."""


def hold_conversation(session: Session, *, model: str | None, tools: list[str] | None) -> None:
    try:
        with _loop() as loop:
            Conversation(session, loop, model, tools).hold()
    except FerruleError as error:
        fail(str(error), code=USAGE)


class Conversation:
    """What is said, by whom, and with which model."""

    def __init__(
        self, session: Session, loop: asyncio.AbstractEventLoop, model: str | None, tools: list[str] | None
    ) -> None:
        self._loop, self._tools = loop, tools
        self._history: list[Message] = []
        self._section = session.config().agent
        self._model = model_of(self._section, model)
        self._library = UnifiedToolLibrary(engine=session.engine(on_elicit=ask_at_the_terminal(contextlib.nullcontext)))

    def hold(self) -> None:
        self._wait(self._library.initialize())
        try:
            with _editing():
                complain(f"ferrule chat, model {self._model.name}. /help shows what else can be said.")
                while (line := _read()) is not None:
                    try:
                        self._take(line.strip())
                    except KeyboardInterrupt:
                        complain("Stopped.")
        finally:
            self._wait(close_model(self._model))
            self._wait(self._library.aclose())

    def _take(self, line: str) -> None:
        if not line:
            return
        word, _, rest = line.partition(" ")
        if word == "/quit":
            raise EOFError
        command = {"/tools": self._list_tools, "/history": self._show_history, "/new": self._begin_anew}.get(word)
        if command is not None:
            command()
        elif word == "/model":
            self._change_model(rest.strip())
        elif word.startswith("/"):
            say(HELP if word == "/help" else f"There is no {word}.\n{HELP}")
        else:
            self._answer(line)

    def _answer(self, line: str) -> None:
        voice = Voice()
        agent = make_agent(
            self._section,
            self._library,
            self._model,
            name="chat",
            tools=self._tools,
            turns=None,
            person=PersonAtTheTerminal(read_line),
        )
        try:
            answer: AgentAnswer = self._wait(agent.run(line, history=self._history, on_event=voice))
        except KeyboardInterrupt:
            voice.end_line()
            complain("Stopped.")
            return
        except FerruleError as error:
            complain(f"ferrule: {error}")
            return
        if answer.state is AgentState.WAITING:
            say_what_it_waits_for(answer)
            return
        voice.finish(answer.text)
        self._history = answer.messages

    def _list_tools(self) -> None:
        show.tools(sorted(self._library.engine.registry, key=lambda tool: tool.id), {})

    def _show_history(self) -> None:
        for message in self._history:
            if message["role"] in ("user", "assistant") and message.get("content"):
                say(f"{message['role']}: {message['content']}")

    def _begin_anew(self) -> None:
        self._history = []
        complain("A new conversation.")

    def _change_model(self, name: str) -> None:
        if name:
            try:
                chosen = choose_model(name)
            except FerruleError as error:
                complain(f"ferrule: {error}")
                return
            self._wait(close_model(self._model))
            self._model = chosen
        say(f"model {self._model.name}")

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the loop do it; Ctrl-C cancels it and waits until it has ended."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
                future.result(timeout=10)
            raise


def _read() -> str | None:
    """What the person types; None at the end."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            complain("(Ctrl-D or /quit ends the conversation)")
        except EOFError:
            return None


@contextlib.contextmanager
def _editing() -> Iterator[None]:
    """Arrow keys and a history of lines, where the system has them; /quit ends it."""
    history: Path | None = None
    with contextlib.suppress(ImportError):
        import readline

        history = Path.home() / ".local/state/ferrule/chat_history"
        with contextlib.suppress(OSError):
            readline.read_history_file(history)
    try:
        yield
    except EOFError:
        pass
    finally:
        if history is not None:
            with contextlib.suppress(OSError):
                history.parent.mkdir(parents=True, exist_ok=True)
                readline.set_history_length(1000)
                readline.write_history_file(history)
                history.chmod(0o600)


@contextlib.contextmanager
def _loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="ferrule-chat", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
