"""`ferrule ask` and `ferrule chat`, and building the agent and orchestrator of a project."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import re
import select
import stat
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from ferrule.agent import Agent, AgentAnswer, AgentState, Person, RunLimits
from ferrule.cli import printing
from ferrule.cli.client import AskOptions, client_of, describe_tools
from ferrule.cli.runs import PlanTree, RunView, TerminalUser, print_waiting
from ferrule.cli.session import EXIT_STOPPED, EXIT_WAITING, AsJson, ModelName, Session, fail, run
from ferrule.cli.terminal import echo, print_error, read_line, terminal_elicitation
from ferrule.config import AgentSection
from ferrule.core.messages import Message
from ferrule.core.model import can_reason
from ferrule.core.names import did_you_mean
from ferrule.core.permission import Principal
from ferrule.core.prices import ModelPrice
from ferrule.engine import ToolEngine
from ferrule.errors import FerruleError, SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.memory.conversation import DEFAULT_CONVERSATION
from ferrule.models import Model, choose_model, close_model
from ferrule.models.choose import KEYED_PROVIDERS
from ferrule.models.keys import model_environment
from ferrule.orchestrator import Orchestrator
from ferrule.orchestrator.orchestrator import DEFAULT_CACHE_TTL, StrategyChosen, history_as_messages, turns_of
from ferrule.orchestrator.small_talk import detect_small_talk, reply_to_small_talk
from ferrule.store.location import user_state_directory
from ferrule.texts.language import detect_language

OnlyTools = Annotated[list[str] | None, typer.Option("--tool", "-t", help="Use only this tool; may be repeated.")]


def ask(
    context: typer.Context,
    question: Annotated[
        str | None, typer.Argument(help="What you want to know or have done; - reads standard input.")
    ] = None,
    model: ModelName = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", "-s", help="plan, loop, direct, or model (the model chooses).")
    ] = None,
    tools: OnlyTools = None,
    turns: Annotated[int | None, typer.Option("--turns", min=1, help="Maximum number of model calls.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", help="Resume this run; QUESTION is your answer.")] = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Allow or refuse the calls a resumed run waits for.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve every call that needs approval.")] = False,
    attach: Annotated[
        list[Path] | None, typer.Option("--attach", "-a", help="A text file that belongs to the question; repeatable.")
    ] = None,
    continues: Annotated[
        bool, typer.Option("--continue", help="Continue the conversation: the model sees the earlier questions.")
    ] = False,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Answer again, not from the cache.")] = False,
    conversation: Annotated[str | None, typer.Option("--conversation", hidden=True)] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a question, or have something done.

    Text that is piped in belongs to the question: cat log | ferrule ask "what failed?"

    Works without an API key, with the offline model. Exit codes: 0 answered, 2 wrong usage, 8 waiting for you,
    9 stopped without an answer, 130 stopped by Ctrl-C.
    """
    options = AskOptions(
        model=model,
        strategy=strategy,
        tools=tools,
        turns=turns,
        resume=resume,
        approve=approve,
        yes=yes,
        attach=attach or (),
        continues=continues,
        no_cache=no_cache,
        conversation=conversation,
        quiet=quiet,
        as_json=as_json,
    )
    local_only = ("model", "tools", "turns", "yes", "attach", "continues", "no_cache")
    client_of(context, local_only=local_only).ask(question, options)


def chat(context: typer.Context, model: ModelName = None, tools: OnlyTools = None) -> None:
    """Chat with a model that can use tools. Works without an API key, with the offline model."""
    with _start_event_loop() as loop:
        ChatSession(context.obj, loop, model, tools).run()


def build_orchestrator(
    section: AgentSection,
    library: UnifiedToolLibrary,
    model: Model,
    *,
    strategy: str | None = None,
    tools: list[str] | None = None,
    turns: int | None = None,
    person: Person | None = None,
    principal: Principal | None = None,
    no_cache: bool = False,
) -> Orchestrator:
    """Options of the command override the project's configuration. The library must be open."""
    selected = tools if tools is not None else section.tools
    check_tools_exist(selected, library)
    return Orchestrator(
        library,
        model,
        workflow=section.workflow,
        strategy=strategy or section.strategy,
        person=person,
        limits=build_limits(section, library.engine.costs.find_model_price(model.name), {"turns": turns}),
        tools=selected,
        instructions=section.instructions,
        principal=principal,
        cache_ttl=None if no_cache else DEFAULT_CACHE_TTL,
    )


def build_limits(
    section: AgentSection, price: ModelPrice | None, options: Mapping[str, Any], *, priority: int = 0
) -> RunLimits:
    """Build the limits of a run from the options of a command, else from the project."""
    values = {name: options.get(name) or getattr(section, name) for name in ("turns", "tokens", "seconds", "cost")}
    if values["cost"] is not None and price is None:
        raise SetupError(
            "A limit on the cost needs the price of the model: write it into [prices.models] of ferrule.toml, or set "
            "input_price and output_price in [agent]."
        )
    price_function = None if price is None else price.cost_of
    return RunLimits(**values, calls=section.calls, price=price_function, priority=priority)


def check_tools_exist(tools: list[str] | None, library: UnifiedToolLibrary) -> None:
    """Raise SetupError for a tool that does not exist."""
    tool_ids = library.engine.registry.snapshot().by_id
    for name in tools or ():
        if name not in tool_ids:
            raise SetupError(
                f"There is no tool {name!r}.{did_you_mean(name, tool_ids)} `ferrule tools list` shows all."
            )


def select_model(section: AgentSection, named: str | None) -> Model:
    return choose_model(named or section.model)


def _select_usable_model(section: AgentSection, named: str | None) -> Model:
    """Choose the model that an option or the project names. Raises SetupError for a missing package or key."""
    spec = named or section.model
    if spec is not None and spec.partition(":")[0] in (*KEYED_PROVIDERS, "litellm"):
        from ferrule.cli.models import explain_problem

        if problem := explain_problem(spec, model_environment()):
            raise SetupError(f"The model {spec!r} cannot be used: {problem}")
    return choose_model(spec)


MAX_ATTACHED_CHARACTERS = 1_000_000
PIPE_TIMEOUT = 3.0
"""Seconds until a pipe without data counts as empty: programs may inherit a pipe."""


def add_attachments(question: str, files: Sequence[Path]) -> str:
    """Append piped text and the text of files to the question, each in a fence that the text does not contain."""
    texts = {"stdin": text} if (text := _read_pipe().strip()) else {}
    for path in files:
        try:
            texts[path.name] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            fail(f"{path} is not a text file. Ask about its path instead.")
        except OSError as error:
            fail(f"Cannot read {path}: {error.strerror}.")
    size = sum(map(len, texts.values()))
    if size > MAX_ATTACHED_CHARACTERS:
        fail(f"{size:,} characters are attached; {MAX_ATTACHED_CHARACTERS:,} are allowed.")
    for name, text in texts.items():
        fence = "`" * (1 + max([2, *(len(ticks) for ticks in re.findall("`+", text))]))
        question += f"\n\n{name}:\n{fence}\n{text.rstrip()}\n{fence}"
    return question


def _read_pipe() -> str:
    """Read what is piped or redirected to standard input; nothing from a terminal or a device."""
    mode = os.fstat(sys.stdin.fileno()).st_mode if sys.stdin is not None and not sys.stdin.closed else 0
    if not (stat.S_ISFIFO(mode) or stat.S_ISREG(mode)):
        return ""
    if stat.S_ISFIFO(mode) and not select.select([sys.stdin], [], [], PIPE_TIMEOUT)[0]:
        print_error(f"ferrule: standard input is a pipe without data for {PIPE_TIMEOUT:g} s; it is not read.")
        return ""
    return sys.stdin.read()


NEW_SERVER_TIMEOUT = 10.0
"""Seconds that a question waits for MCP servers that have never listed their actions."""


async def _wait_for_new_servers(engine: ToolEngine, *, quiet: bool) -> None:
    """Let a model see the actions of servers that were just added; a slow server does not hold up the question."""
    if not engine.is_discovering:
        return
    try:
        async with asyncio.timeout(NEW_SERVER_TIMEOUT):
            await engine.wait_for_discovery()
    except TimeoutError:
        if not quiet:
            print_error("ferrule: an MCP server has not listed its actions yet, and the question does not wait for it.")


def run_question(session: Session, question: str | None, options: AskOptions) -> None:
    resume = options.resume
    if options.conversation is not None:
        fail("--conversation is for servers. Here, use --continue.")
    if question == "-":
        question = sys.stdin.read().strip()
    elif question is None and resume is None:
        question = _read_pipe().strip()
    elif question and resume is None:
        question = add_attachments(question, options.attach)
    if not question and resume is None:
        fail('No question given. Try: ferrule ask "what is 2 + 2?"')
    quiet = options.quiet or options.as_json
    view, tree = RunView(question or "", quiet=quiet, stream=not options.as_json), PlanTree(quiet=quiet)
    run_ids = [resume] if resume else []

    def on_event(event: Any) -> None:
        if isinstance(event, StrategyChosen):
            run_ids.append(event.run_id)
        tree(event)
        view(event)

    async def command() -> AgentAnswer:
        section = session.config().agent
        chosen = _select_usable_model(section, options.model)
        view.shows_results = can_reason(chosen)
        engine = session.engine(on_elicit=terminal_elicitation(tree.hidden))
        person = TerminalUser(read_line, yes=options.yes, hidden=tree.hidden, language=detect_language(question or ""))
        try:
            async with UnifiedToolLibrary(engine=engine, hub=session.config().hub) as library:
                built = build_orchestrator(
                    section,
                    library,
                    chosen,
                    strategy=options.strategy,
                    tools=options.tools,
                    turns=options.turns,
                    person=person,
                    no_cache=options.no_cache,
                )
                async with built as orchestrator:
                    await _wait_for_new_servers(engine, quiet=quiet)
                    if resume is not None:
                        return await orchestrator.resume(
                            resume, question or None, approvals=options.approve, on_event=on_event
                        )
                    history: list[Message] = []
                    if options.continues:
                        await orchestrator.memory.synchronize(DEFAULT_CONVERSATION)
                        snapshot = await orchestrator.memory.create_snapshot(DEFAULT_CONVERSATION).turns()
                        history = history_as_messages(snapshot)
                    return await orchestrator.process_task(question or "", history=history, on_event=on_event)
        except (asyncio.CancelledError, FerruleError):
            if view.output_error is not None:
                raise view.output_error from None
            raise
        finally:
            tree.finish()
            await close_model(chosen)

    result = run(
        command(), after_interrupt=lambda: f" Resume with: ferrule runs resume {run_ids[-1]}" if run_ids else ""
    )
    if options.as_json:
        printing.print_json(result.to_dict())
    else:
        if result.state is not AgentState.WAITING:
            view.finish(result.answer)
        print_waiting(result, detect_language(result.question))
        if result.cached and not options.quiet:
            print_error("(This answer is from the cache; --no-cache asks again.)")
    if result.state is not AgentState.FINISHED:
        raise typer.Exit(EXIT_WAITING if result.state is AgentState.WAITING else EXIT_STOPPED)


T = TypeVar("T")

HELP = """\
/tools          list the tools
/model [NAME]   show the model; with a name, change it
/history        show the conversation
/new            start a new conversation
/quit           end (or Ctrl-D)
Ctrl-C stops the current run."""


class ChatSession:
    """One conversation at the terminal: its messages, model and tools."""

    def __init__(
        self, session: Session, loop: asyncio.AbstractEventLoop, model: str | None, tools: list[str] | None
    ) -> None:
        self._loop, self._tools = loop, tools
        self._history: list[Message] = []
        self._section = session.config().agent
        self._model = _select_usable_model(self._section, model)
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
        if word == "/tools":
            engine = self._library.engine
            printing.print_tools(describe_tools(engine, sorted(engine.registry, key=lambda tool: tool.id)))
        elif word == "/history":
            for message in self._history:
                if message["role"] in ("user", "assistant") and message.get("content"):
                    echo(f"{message['role']}: {message['content']}")
        elif word == "/new":
            self._history = []
            print_error("A new conversation.")
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
        section, price = self._section, self._library.engine.costs.find_model_price(self._model.name)
        agent = Agent(
            self._library,
            self._model,
            name="chat",
            instructions=section.instructions,
            tools=self._tools if self._tools is not None else section.tools,
            core_tools=section.core_tools,
            limits=build_limits(section, price, {}),
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
    """Read the line that the user types; None at the end."""
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

        history = user_state_directory() / "chat_history"
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
    """Run an event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="ferrule-chat", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
