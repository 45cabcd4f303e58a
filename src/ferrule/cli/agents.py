"""The commands of agents: `ferrule ask`, `chat`, `runs` and `failures`.

What they do is loaded when they do it: the other commands start faster without an agent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[
    str | None,
    typer.Option("--model", "-m", help="openai:NAME, anthropic:NAME, local, local:FILE.gguf or offline."),
]
OnlyTools = Annotated[list[str] | None, typer.Option("--tool", "-t", help="Use only this tool; may be given again.")]
RunId = Annotated[str, typer.Argument(help="The run.")]
OfTool = Annotated[str | None, typer.Argument(help="Of this tool only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

runs_app = typer.Typer(help="See earlier runs of agents.", no_args_is_help=True)
failures_app = typer.Typer(help="See and forget what failed in earlier runs.", no_args_is_help=True)


def ask(
    context: typer.Context,
    question: Annotated[str | None, typer.Argument(help="What you want to know or have done; - reads it.")] = None,
    model: ModelName = None,
    strategy: Annotated[
        str | None, typer.Option("--strategy", "-s", help="plan, loop, direct, or model to let the model choose.")
    ] = None,
    tools: OnlyTools = None,
    turns: Annotated[int | None, typer.Option("--turns", min=1, help="How often the model may be asked.")] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", help="Go on with this run; QUESTION is your answer.")
    ] = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Your word on the calls a resumed run waits for.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to every call that needs it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Ask a question, or have something done.

    Works without a key: the offline model says what it can and cannot do. Exit codes: 0 answered, 2 wrong usage,
    8 it waits for you, 9 it stopped without an answer, 130 stopped by Ctrl-C.
    """
    from ferrule.cli.ask import answer_question

    answer_question(
        context.obj,
        question,
        model=model,
        strategy=strategy,
        tools=tools,
        turns=turns,
        resume=resume,
        approve=approve,
        yes=yes,
        quiet=quiet,
        as_json=as_json,
    )


def chat(context: typer.Context, model: ModelName = None, tools: OnlyTools = None) -> None:
    """Talk with a model that has tools. Works without a key, on the offline model."""
    from ferrule.cli.chat import hold_conversation

    hold_conversation(context.obj, model=model, tools=tools)


@runs_app.command("list")
def list_runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, the latest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List runs, the latest first."""
    from ferrule.cli import runs

    runs.list_runs(context.obj, limit=limit, as_json=as_json)


@runs_app.command("show")
def show_run(context: typer.Context, run_id: RunId, as_json: AsJson = False) -> None:
    """Print the history of a run; with --json as OpenAI's API takes it."""
    from ferrule.cli import runs

    runs.show_run(context.obj, run_id, as_json=as_json)


@runs_app.command("resume")
def resume_run(
    context: typer.Context,
    run_id: RunId,
    answer: Annotated[str | None, typer.Argument(help="What you say to what it asked.")] = None,
    model: ModelName = None,
    approve: Annotated[
        bool | None, typer.Option("--approve/--deny", help="Your word on the calls it waits for.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Agree to every call that needs it.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the answer alone.")] = False,
    as_json: AsJson = False,
) -> None:
    """Go on with a run that waits for you, or that was interrupted; what was done is not done again."""
    from ferrule.cli.ask import answer_question

    answer_question(
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
    run_ids: Annotated[list[str] | None, typer.Argument(help="The runs; else all.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write; else standard output.")
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
    """List what failed, with what, and what worked instead; the weightiest first."""
    from ferrule.cli import failures

    failures.list_failures(context.obj, tool, as_json=as_json)


@failures_app.command("forget")
def forget_failures(context: typer.Context, tool: OfTool = None) -> None:
    """Forget what was learned, of one tool or of all."""
    from ferrule.cli import failures

    failures.forget_failures(context.obj, tool)
