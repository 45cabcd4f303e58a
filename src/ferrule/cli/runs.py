"""Runs at the terminal as they happen, and earlier ones: `ferrule runs` and `failures`."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Final

import typer

from ferrule.agent import AgentAnswer, AgentState, Approval, ApprovalRequest, Question
from ferrule.agent.answer import (
    NO_TOOL,
    CallEnded,
    CallStarted,
    Plan,
    PlanCreated,
    PlanStep,
    StepEnded,
    StepResult,
    TextPiece,
    TurnStarted,
)
from ferrule.agent.run import RUN_PREFIX, Run, lock_run
from ferrule.cli import printing
from ferrule.cli.client import AskOptions, client_of
from ferrule.cli.session import AsJson, MaxCount, ModelName, Output, RunId, open_output, run_with_store
from ferrule.cli.terminal import (
    echo,
    has_terminal,
    indent_imitations,
    indent_lines,
    print_error,
    show_control_characters,
)
from ferrule.core.content import as_text
from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallCancelled
from ferrule.memory.failure_history import FailureHistory, FailurePattern
from ferrule.store import ToolKnowledgeStore
from ferrule.texts.answers import main_text
from ferrule.texts.error_messages import translate_error
from ferrule.texts.fixed_replies import QUESTIONS_TO_USER
from ferrule.texts.language import detect_language
from ferrule.texts.shorten import shorten, single_line

_FENCE: Final = lazy_pattern(r"\s*(?:```|~~~)")
_MARKUP: Final = lazy_pattern(
    r"^\s{0,3}(?:#{1,6} |[-*+] |\d+[.)] |> |```|~~~|\|.*\|\s*$)|\*\*\S|(?<!\w)__\S|`[^`\n]+`|\]\(\S+\)", re.MULTILINE
)
"""What is worth rendering: other text is printed as it is, so that its line ends stay."""


def render_markdown(text: str) -> str:
    """Render text for a terminal, ending with a line end. Plain text is not changed."""
    text = show_control_characters(text)
    if not _MARKUP.search(text):
        return indent_imitations(text if text.endswith("\n") else f"{text}\n")
    from rich.console import Console
    from rich.markdown import Markdown

    output = io.StringIO()
    width = shutil.get_terminal_size().columns
    console = Console(file=output, force_terminal=True, width=width, highlight=False)
    console.print(Markdown(text, hyperlinks=False))  # without hyperlinks, the target of a link is shown beside it
    return indent_imitations("\n".join(line.rstrip() for line in output.getvalue().strip("\n").split("\n")) + "\n")


class MarkdownStream:
    """Renders a text that arrives in pieces."""

    def __init__(self) -> None:
        self._pending = ""

    def add(self, piece: str) -> str:
        """Add a piece, and return the blocks that are complete now."""
        self._pending += piece
        if "\n" not in piece:
            return ""
        end = _end_of_complete_blocks(self._pending)
        complete, self._pending = self._pending[:end], self._pending[end:]
        return f"{render_markdown(complete.strip(chr(10)))}\n" if complete.strip() else ""

    def flush(self) -> str:
        """Return the rest, when the text has ended."""
        rest, self._pending = self._pending.strip("\n"), ""
        return render_markdown(rest) if rest.strip() else ""


def _end_of_complete_blocks(text: str) -> int:
    """Return where the last blank line outside of code ends."""
    in_code, end, position = False, 0, 0
    for line in text.splitlines(keepends=True):
        position += len(line)
        if _FENCE.match(line):
            in_code = not in_code
        elif not in_code and line.endswith("\n") and not line.strip():
            end = position
    return end


MAX_LINE_LENGTH = 100
_MAX_APPROVAL_LENGTH = 10_000
"""Characters of arguments shown for approval; the middle of longer ones is left out, and that is said."""
_YES = ("y", "yes", "是", "好", "可以", "允许", "同意", "ok")
ReadLine = Callable[[str], Awaitable[str]]


class RunView:
    """Prints a run as it happens: its text to standard output, everything else to standard error."""

    def __init__(self, question: str = "", *, quiet: bool = False, stream: bool = True) -> None:
        self._language, self._quiet, self._stream = detect_language(question), quiet, stream
        self.shows_results = True
        """Not for a model that only repeats them: its answer consists of the results."""
        self._output = ""
        """The part of the current text that has arrived."""
        self._markdown = MarkdownStream() if sys.stdout.isatty() else None
        self.output_error: OSError | None = None
        """Why standard output cannot be written: its reader is gone, or the disk is full."""

    def __call__(self, event: Any) -> None:
        if isinstance(event, TextPiece) and self._stream:
            self._output += event.text
            self._print_piece(event.text if self._markdown is None else self._markdown.add(event.text))
        elif isinstance(event, CallStarted) and not self._quiet:
            self.end_line()
            values = {name: single_line(as_text(value)) for name, value in event.call.arguments.items()}
            pairs = values.values() if len(values) == 1 else (f"{name}={value}" for name, value in values.items())
            print_error(f"· {event.call.name} {shorten(', '.join(pairs), MAX_LINE_LENGTH)}".rstrip())
        elif isinstance(event, CallEnded) and not self._quiet and (self.shows_results or not event.step.is_success):
            mark, text = "→" if event.step.is_success else "✗", main_text(event.step.text)
            text = text if event.step.is_success else translate_error(text, self._language)
            print_error(f"  {mark} {shorten(single_line(text), MAX_LINE_LENGTH)}")
        elif isinstance(event, TurnStarted):
            self.end_line()
            self._output = ""

    def finish(self, answer: str) -> None:
        """Print what was not streamed of the answer."""
        try:
            self.end_line()
        except asyncio.CancelledError:
            raise self.output_error or OSError() from None
        streamed = self._output.strip() if self._stream else ""
        if not streamed or not answer.strip().startswith(streamed):
            streamed = ""
        rest = answer.strip()[len(streamed) :].strip("\n") if streamed else answer
        if rest or not streamed:
            print(f"{rest}\n" if self._markdown is None else render_markdown(rest), end="")

    def _print_piece(self, text: str) -> None:
        try:
            print(text, end="", flush=True)
        except OSError as error:
            self.output_error = error
            raise asyncio.CancelledError from None  # the answer cannot be read, so the run stops

    def end_line(self) -> None:
        if self._markdown is not None:
            self._print_piece(self._markdown.flush())
        elif self._output and not self._output.endswith("\n"):
            self._print_piece("\n")
            self._output += "\n"


class TerminalUser:
    """The user at the terminal, who is asked. Without a terminal nothing is answered, and the run waits."""

    def __init__(
        self,
        read_line: ReadLine,
        *,
        yes: bool = False,
        hidden: Callable[[], AbstractContextManager[None]] = nullcontext,
        language: str = "en",
    ) -> None:
        """`hidden` removes other output from the terminal while the user types."""
        self._read_line, self._yes, self._hidden, self._language = read_line, yes, hidden, language

    async def answer(self, question: Question) -> str | None:
        if not has_terminal():
            return None
        with self._hidden():
            print_error(f"? {indent_lines(question.text)}")
            for number, option in enumerate(question.options, 1):
                print_error(f"  {number}. {option}")
            try:
                reply = await self._read_line("  > ")
            except CallCancelled:
                return None
        if reply.isdecimal() and 1 <= int(reply) <= len(question.options):
            return question.options[int(reply) - 1]
        return reply

    async def approve(self, request: ApprovalRequest) -> Approval | None:
        if self._yes:
            return Approval(allowed=True)
        if not has_terminal():
            return None
        with self._hidden():
            _print_request(request, self._language)
            try:
                reply = await self._read_line(f"  {QUESTIONS_TO_USER[self._language]['reply']}")
            except CallCancelled:
                return None
        if reply.strip().casefold() in _YES:
            return Approval(allowed=True)
        return Approval(allowed=False, reason="" if reply.strip().casefold() in ("", "n", "no", "否", "不") else reply)


def _print_request(request: ApprovalRequest, language: str) -> None:
    action = "" if request.action in (None, "", request.tool_id) else f" ({request.action})"
    call, arguments = f"{request.tool_id}{action}", show_control_characters(as_text(request.arguments))
    if (hidden := len(arguments) - _MAX_APPROVAL_LENGTH) > 0:  # nothing is left out without saying so
        half = _MAX_APPROVAL_LENGTH // 2
        arguments = f"{arguments[:half]} [… {hidden} characters are not shown …] {arguments[-half:]}"
    print_error(f"? {QUESTIONS_TO_USER[language]['allow'].format(call=call, arguments=arguments)}")
    for line in translate_error(request.reason, language).splitlines():
        print_error(f"  {line}")
    for line in request.describe_origins():
        print_error(f"  {show_control_characters(line)}")


def print_waiting(answer: AgentAnswer, language: str = "en") -> None:
    """Print what a waiting run needs, and the command that resumes it."""
    if answer.state is not AgentState.WAITING:
        return
    texts = QUESTIONS_TO_USER[language]
    for number, question in enumerate(answer.questions):
        print_error(f"? {indent_lines(question.text)}")
        for option in question.options:
            print_error(f"  - {option}")
        print_error(f"  {texts['next_answer' if number else 'answer'].format(run_id=answer.run_id)}")
    for request in answer.approvals:
        _print_request(request, language)
        print_error(f"  {texts['decide'].format(run_id=answer.run_id)}")


class PlanTree:
    """Shows the steps of a plan and their results: as a live tree at a terminal, as lines elsewhere."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._plan: Plan | None = None
        self._results: dict[str, StepResult] = {}
        self._live: Any = None

    def __call__(self, event: Any) -> None:
        if isinstance(event, PlanCreated):
            self._results |= {str(result.step_id): result for result in event.results}
            self._show_plan(event.plan)
        elif isinstance(event, StepEnded):
            self._results[str(event.result.step_id)] = event.result
            if self._live is not None:
                self._live.update(self._draw_tree())
            elif not self._quiet and self._is_worth_showing():
                print_error(self._describe_result(event.result))

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Remove the tree while the user types."""
        live = self._live
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            if live is not None:
                live.start()

    def finish(self) -> None:
        """Draw the final state."""
        if self._live is not None:
            self._live.update(self._draw_tree())
            self._live.stop()
            self._live = None

    def _show_plan(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        if self._quiet or not self._is_worth_showing():
            return
        if self._live is not None:
            self._live.update(self._draw_tree())
        elif sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(self._draw_tree(), console=Console(stderr=True), refresh_per_second=8, transient=False)
            self._live.start()
        else:
            for step in plan.steps:
                result = self._results.get(str(step.id))
                if before is None or step.id not in {other.id for other in before.steps}:
                    print_error(
                        f"  {step.id}. {_describe_step(step)}" if result is None else self._describe_result(result)
                    )

    def _is_worth_showing(self) -> bool:
        """Return False for a single step, which shows nothing that the answer does not."""
        return self._plan is not None and len(self._plan.steps) > 1

    def _draw_tree(self) -> Any:
        from rich.spinner import Spinner
        from rich.text import Text
        from rich.tree import Tree

        assert self._plan is not None
        tree = Tree(Text("plan", style="bold"), guide_style="dim")
        for step in self._plan.steps:
            result = self._results.get(str(step.id))
            if result is not None:
                style = "green" if result.success else "yellow" if result.skipped else "red"
                line = show_control_characters(self._describe_result(result))
                tree.add(Text(line, style=style, overflow="ellipsis", no_wrap=True))
            elif all(str(dependency) in self._results for dependency in step.dependencies):
                tree.add(Spinner("dots", text=Text(show_control_characters(f"{step.id}. {_describe_step(step)}"))))
            else:
                tree.add(Text(show_control_characters(f"· {step.id}. {_describe_step(step)}"), style="dim"))
        return tree

    def _describe_result(self, result: StepResult) -> str:
        assert self._plan is not None
        mark = "✓" if result.success else "–" if result.skipped else "✗"
        outcome = result.result if result.success else result.error or "failed"
        step = self._plan[result.step_id]
        return f"{mark} {step.id}. {_describe_step(step)} → {shorten(single_line(outcome), MAX_LINE_LENGTH)}"


def _describe_step(step: PlanStep) -> str:
    tool = "" if step.tool_type == NO_TOOL else f" [{step.tool_type}]"
    return shorten(single_line(step.description), MAX_LINE_LENGTH) + tool


# Earlier runs, and the failures stored from them

OfTool = Annotated[str | None, typer.Argument(help="Only this tool.")]

runs_app = typer.Typer(help="List, show, resume, export and delete runs.", no_args_is_help=True)
failures_app = typer.Typer(help="List and delete the failures stored from earlier runs.", no_args_is_help=True)


@runs_app.command("list")
def list_runs(context: typer.Context, limit: MaxCount = 20, as_json: AsJson = False) -> None:
    """List runs, the latest first."""
    columns: printing.Columns = {
        "run": "run_id",
        "when": lambda each: f"{datetime.fromisoformat(each['at']).astimezone():%Y-%m-%d %H:%M}",
        "state": "state",
        "turns": "turns",
        "steps": "calls",
        "task": lambda each: single_line(each["task"]),
    }
    empty = 'No runs yet. Ask something: ferrule ask "what is 2 + 2?"'
    printing.print_list(client_of(context).list_runs(limit), columns, as_json=as_json, empty=empty, cut=(5,))


@runs_app.command("show")
def show_run(context: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Print the history of a run; with --json in OpenAI's message format."""
    inspected = client_of(context).find_run(run_id)
    if as_json:
        printing.print_json(inspected["messages"])
        return
    printing.print_messages(inspected["messages"])
    echo(f"run: {inspected['state']}" + (f" ({single_line(inspected['reason'])})" if inspected["reason"] else ""))
    if inspected["state"] == AgentState.INTERRUPTED:
        echo(f"Resume with: ferrule runs resume {run_id}")


@runs_app.command("resume")
def resume_run(
    context: typer.Context,
    run_id: RunId,
    answer: Annotated[str | None, typer.Argument(help="Your answer to its question.")] = None,
    model: ModelName = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Allow or refuse the calls it waits for.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve every call that needs approval.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Resume a run that waits for you or was interrupted; finished calls are not repeated."""
    options = AskOptions(model=model, resume=run_id, approve=approve, yes=yes, quiet=quiet, as_json=as_json)
    client_of(context, local_only=("model", "yes")).ask(answer, options)


@runs_app.command("export")
def export_runs(
    context: typer.Context,
    run_ids: Annotated[list[str] | None, typer.Argument(help="The runs; default: all.")] = None,
    output: Output = None,
) -> None:
    """Write runs as conversations, one JSON object per line, in chat format."""

    async def export(store: ToolKnowledgeStore) -> int:
        selected = run_ids or [stream.removeprefix(RUN_PREFIX) for stream in await store.list_streams(RUN_PREFIX)]
        for run_id in run_ids or ():
            await Run.load(run_id, store)  # before anything is written: a run may not exist
        with open_output(output) as file:
            for run_id in selected:
                loaded = await Run.load_and_detect_interruption(run_id, store)
                line = {"run_id": run_id, "task": loaded.task, "state": loaded.state.value, "messages": loaded.messages}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        return len(selected)

    count = run_with_store(context.obj, export)
    if output is not None:
        echo(f"{printing.format_count(count, 'run')} written to {output}.")


@runs_app.command("forget")
def forget_run(context: typer.Context, run_id: RunId) -> None:
    """Delete the history of a run. The records of its calls stay."""

    async def delete(store: ToolKnowledgeStore) -> None:
        async with lock_run(store, run_id):
            await Run.load(run_id, store)
            await store.delete_entries(RUN_PREFIX + run_id)

    run_with_store(context.obj, delete)
    echo(f"The run {run_id} is deleted.")


@failures_app.command("list")
def list_failures(context: typer.Context, tool: OfTool = None, as_json: AsJson = False) -> None:
    """List stored failures with their arguments and what worked instead; the most frequent first."""

    async def read(store: ToolKnowledgeStore) -> list[FailurePattern]:
        history = FailureHistory(store)
        await history.load()
        return history.patterns(tool)

    patterns = run_with_store(context.obj, read)
    columns: printing.Columns = {
        "tool": "tool_id",
        "action": "action",
        "failure": "failure_class",
        "parameters": lambda each: ", ".join(each["parameters"]),
        "what helped": "what_helped",
        "count": lambda each: f"{each['count']:.3g}",
        "last": lambda each: f"{datetime.fromisoformat(each['last_at']):%m-%d}",
    }
    failures = [
        {**asdict(p), "last_at": printing.format_time(p.last_at), "what_helped": p.what_helped} for p in patterns
    ]
    printing.print_list(failures, columns, as_json=as_json, empty="No failures are stored.", cut=(3, 4))


@failures_app.command("forget")
def forget_failures(context: typer.Context, tool: OfTool = None) -> None:
    """Delete the stored failures of one tool, or of all."""
    count = run_with_store(context.obj, lambda store: FailureHistory(store).forget(tool))
    echo(f"{printing.format_count(count, 'failure')} deleted.")
