"""`ferrule chat`: a conversation with tools.

The terminal uses the main thread, so that lines can be edited as usual; runs use an event loop in another thread.
Ctrl-C stops the current run; Ctrl-D or /quit ends the conversation.
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
from ferrule.cli import printing
from ferrule.cli.ask import build_agent, select_model
from ferrule.cli.elicitation import terminal_elicitation
from ferrule.cli.run_view import RunView, TerminalUser, print_waiting
from ferrule.cli.session import EXIT_USAGE, Session, fail
from ferrule.cli.terminal import echo, print_error, read_line
from ferrule.core.messages import Message
from ferrule.core.model import can_reason
from ferrule.errors import FerruleError, text_with_notes
from ferrule.library.library import UnifiedToolLibrary
from ferrule.models import choose_model, close_model
from ferrule.orchestrator.small_talk import detect_small_talk, reply_to_small_talk
from ferrule.orchestrator.strategy_runner import turns_of
from ferrule.texts.language import detect_language

T = TypeVar("T")

HELP = """\
/tools          list the tools
/model [NAME]   show the model; with a name, change it
/history        show the conversation
/new            start a new conversation
/quit           end (or Ctrl-D)
Ctrl-C stops the current run."""


def run_chat(session: Session, *, model: str | None, tools: list[str] | None) -> None:
    try:
        with _start_event_loop() as loop:
            ChatSession(session, loop, model, tools).run()
    except FerruleError as error:
        fail(text_with_notes(error), code=EXIT_USAGE)


class ChatSession:
    """One conversation at the terminal: its messages, model and tools."""

    def __init__(
        self, session: Session, loop: asyncio.AbstractEventLoop, model: str | None, tools: list[str] | None
    ) -> None:
        self._loop, self._tools = loop, tools
        self._history: list[Message] = []
        self._section = session.config().agent
        self._model = select_model(self._section, model)
        self._library = UnifiedToolLibrary(
            engine=session.engine(on_elicit=terminal_elicitation(contextlib.nullcontext)), hub=session.config().hub
        )

    def run(self) -> None:
        self._run_in_loop(self._library.initialize())
        try:
            with _line_editing():
                print_error(f"ferrule chat, model {self._model.name}. /help lists the commands.")
                while (line := _read_input()) is not None:
                    try:
                        self._handle_line(line.strip())
                    except KeyboardInterrupt:
                        print_error("Stopped.")
        finally:
            self._run_in_loop(close_model(self._model))
            self._run_in_loop(self._library.aclose())

    def _handle_line(self, line: str) -> None:
        if not line:
            return
        word, _, rest = line.partition(" ")
        if word == "/quit":
            raise EOFError
        command = {
            "/tools": self._list_tools,
            "/history": self._show_history,
            "/new": self._start_new_conversation,
        }.get(word)
        if command is not None:
            command()
        elif word == "/model":
            self._change_model(rest.strip())
        elif word.startswith("/"):
            echo(HELP if word == "/help" else f"Unknown command {word}.\n{HELP}")
        else:
            self._run_agent(line)

    def _run_agent(self, line: str) -> None:
        small_talk = detect_small_talk(line, has_language_model=can_reason(self._model))
        if small_talk is not None:
            snapshot = self._library.engine.registry.snapshot()
            callable_tools = list(filter(None, map(snapshot.get, snapshot.by_id)))
            echo(reply_to_small_talk(small_talk, callable_tools, turns_of(self._history), detect_language(line)))
            return
        view = RunView(line)
        view.shows_results = can_reason(self._model)
        agent = build_agent(
            self._section,
            self._library,
            self._model,
            name="chat",
            tools=self._tools,
            turns=None,
            person=TerminalUser(read_line, language=detect_language(line)),
        )
        try:
            answer: AgentAnswer = self._run_in_loop(agent.run(line, history=self._history, on_event=view))
        except KeyboardInterrupt:
            view.end_line()
            print_error("Stopped.")
            return
        except FerruleError as error:
            print_error(f"ferrule: {error}")
            return
        if answer.state is AgentState.WAITING:
            print_waiting(answer, detect_language(line))
            return
        view.finish(answer.text)
        self._history = answer.messages

    def _list_tools(self) -> None:
        printing.print_tools(sorted(self._library.engine.registry, key=lambda tool: tool.id), {})

    def _show_history(self) -> None:
        for message in self._history:
            if message["role"] in ("user", "assistant") and message.get("content"):
                echo(f"{message['role']}: {message['content']}")

    def _start_new_conversation(self) -> None:
        self._history = []
        print_error("A new conversation.")

    def _change_model(self, name: str) -> None:
        if name:
            try:
                chosen = choose_model(name)
            except FerruleError as error:
                print_error(f"ferrule: {error}")
                return
            self._run_in_loop(close_model(self._model))
            self._model = chosen
        echo(f"model {self._model.name}")

    def _run_in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop; Ctrl-C cancels it and waits until it has ended."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            with contextlib.suppress(concurrent.futures.CancelledError, concurrent.futures.TimeoutError):
                future.result(timeout=10)
            raise


def _read_input() -> str | None:
    """The line the user types; None at the end."""
    while True:
        try:
            return input("> " if sys.stdin.isatty() else "")
        except KeyboardInterrupt:
            print_error("(Ctrl-D or /quit ends the conversation)")
        except EOFError:
            return None


@contextlib.contextmanager
def _line_editing() -> Iterator[None]:
    """Line editing and input history where the system has readline; /quit ends it."""
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
def _start_event_loop() -> Iterator[asyncio.AbstractEventLoop]:
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
