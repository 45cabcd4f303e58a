"""The commands `ferrule ask`, `chat`, `runs` and `failures`.

Their implementation is imported when one of them runs, because the other commands start faster without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli.options import AsJson, MaxCount, RunId

ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="openai:NAME, anthropic:NAME, ollama:NAME or offline; see `ferrule models`."),
]
OnlyTools = Annotated[list[str] | None, typer.Option("--tool", "-t", help="Use only this tool; may be repeated.")]
OfTool = Annotated[str | None, typer.Argument(help="Only this tool.")]

runs_app = typer.Typer(help="List, show, resume, export and delete runs.", no_args_is_help=True)
failures_app = typer.Typer(help="List and delete the failures stored from earlier runs.", no_args_is_help=True)


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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the answer.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a question, or have something done.

    Text that is piped in belongs to the question: cat log | ferrule ask "what failed?"

    Works without an API key, with the offline model. Exit codes: 0 answered, 2 wrong usage, 8 waiting for you,
    9 stopped without an answer, 130 stopped by Ctrl-C.
    """
    from ferrule.cli.ask import run_question

    run_question(
        context.obj,
        question,
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
        quiet=quiet,
        as_json=as_json,
    )


def chat(context: typer.Context, model: ModelName = None, tools: OnlyTools = None) -> None:
    """Chat with a model that can use tools. Works without an API key, with the offline model."""
    from ferrule.cli.chat import run_chat

    run_chat(context.obj, model=model, tools=tools)


@runs_app.command("list")
def list_runs(
    context: typer.Context,
    limit: MaxCount = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first."""
    from ferrule.cli import runs

    runs.list_runs(context.obj, limit=limit, as_json=as_json)


@runs_app.command("show")
def show_run(context: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Print the history of a run; with --json in OpenAI's message format."""
    from ferrule.cli import runs

    runs.show_run(context.obj, run_id, as_json=as_json)


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
    from ferrule.cli.ask import run_question

    run_question(
        context.obj,
        answer,
        model=model,
        strategy=None,
        tools=None,
        turns=None,
        resume=run_id,
        approve=approve,
        yes=yes,
        quiet=quiet,
        as_json=as_json,
    )


@runs_app.command("export")
def export_runs(
    context: typer.Context,
    run_ids: Annotated[list[str] | None, typer.Argument(help="The runs; default: all.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; default: standard output.")
    ] = None,
) -> None:
    """Write runs as conversations, one JSON object per line, in chat format."""
    from ferrule.cli import runs

    runs.export_runs(context.obj, run_ids or [], output=output)


@runs_app.command("forget")
def forget_run(context: typer.Context, run_id: RunId) -> None:
    """Delete the history of a run. The records of its calls stay."""
    from ferrule.cli import runs

    runs.forget_run(context.obj, run_id)


@failures_app.command("list")
def list_failures(context: typer.Context, tool: OfTool = None, as_json: AsJson = False) -> None:
    """List stored failures with their arguments and what worked instead; the most frequent first."""
    from ferrule.cli import runs as failures

    failures.list_failures(context.obj, tool, as_json=as_json)


@failures_app.command("forget")
def forget_failures(context: typer.Context, tool: OfTool = None) -> None:
    """Delete the stored failures of one tool, or of all."""
    from ferrule.cli import runs as failures

    failures.forget_failures(context.obj, tool)
