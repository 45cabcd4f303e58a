"""`ferrule batch`: run many tasks, and look at their trajectories.

The implementation is imported when a command runs, because the other commands start faster without it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli.options import AsJson

batch_app = typer.Typer(help="Run many tasks, each exactly once, and look at their trajectories.", no_args_is_help=True)

BatchFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the batch.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file to write; default: standard output.")]


@batch_app.command("run")
def run_batch(
    context: typer.Context,
    tasks: Annotated[str, typer.Argument(help="A file with one JSON object per line; - for standard input.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the trajectories.")],
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Tasks at a time.")] = 8,
    model: Annotated[str | None, typer.Option("--model", "-m", help="As for `ferrule ask`.")] = None,
    tools: Annotated[list[str] | None, typer.Option("--tool", "-t", help="Use only this tool; repeatable.")] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", min=0, help="The most that all tasks together may cost.")
    ] = None,
    turns: Annotated[int | None, typer.Option("--turns", min=1, help="Turns per task.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Tokens per task.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--timeout", min=0.001, help="Seconds per task, without waits for the model's server."),
    ] = None,
    cost: Annotated[float | None, typer.Option("--cost", min=0, help="The most that one task may cost.")] = None,
    patience: Annotated[
        float, typer.Option("--patience", min=1, help="Seconds without any reply of the model after which it stops.")
    ] = 3600.0,
    on: Annotated[
        str, typer.Option("--on", help="Where the tasks run: local, ray, or a Ray cluster: ray://HOST:PORT, HOST:PORT.")
    ] = "local",
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="Workers on the cluster; default: its CPUs.")
    ] = None,
    resources: Annotated[
        list[str] | None,
        typer.Option("--resource", help="What each worker reserves on the cluster: gpu=1; default: cpu=1; repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run the tasks of a file. Running it again continues where it stopped.

    A line is {"id": "t1", "task": "what to do", "tools": ["only", "these"], "metadata": {}}; all but the task may be
    left out. Ctrl-C finishes the tasks in progress; twice stops now. Exit codes: 0 all tasks are done, 2 wrong usage,
    9 stopped before (budget, model not available), 130 stopped by Ctrl-C.
    """
    from ferrule.cli import batch_commands

    batch_commands.run_batch(
        context.obj,
        tasks,
        out,
        concurrency=concurrency,
        model=model,
        tools=tools,
        budget=budget,
        limits={"turns": turns, "tokens": tokens, "seconds": seconds, "cost": cost},
        patience=patience,
        on=on,
        workers=workers,
        resources=resources,
        as_json=as_json,
    )


@batch_app.command("summary")
def summarize_batch(folder: BatchFolder, as_json: AsJson = False) -> None:
    """Print the totals of a batch."""
    from ferrule.cli import batch_commands

    batch_commands.print_summary(folder, as_json=as_json)


@batch_app.command("show")
def show_trajectory(
    folder: BatchFolder,
    task_id: Annotated[str | None, typer.Argument(help="The id of a task; without it, the tasks are listed.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List only tasks without an answer.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number in the list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the trajectory of a task, or list the tasks."""
    from ferrule.cli import batch_commands

    if task_id is None:
        batch_commands.list_tasks(folder, failed=failed, limit=limit, as_json=as_json)
    else:
        batch_commands.show_trajectory(folder, task_id, as_json=as_json)


@batch_app.command("export")
def export_batch(
    folder: BatchFolder,
    form: Annotated[
        str, typer.Option("--format", "-f", help="atif, openai, sharegpt or ferrule.", metavar="FORMAT")
    ] = "openai",
    output: Output = None,
    finished: Annotated[bool, typer.Option("--finished", help="Only tasks with an answer.")] = False,
) -> None:
    """Write the trajectories for training and other tools, one JSON object per line."""
    from ferrule.cli import batch_commands

    batch_commands.export(folder, form, output, finished=finished)


@batch_app.command("compare")
def compare_batches(
    first: Annotated[Path, typer.Argument(metavar="A", help="The folder of a batch.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The folder of another one with the same tasks.")],
    as_json: AsJson = False,
) -> None:
    """Compare two batches task by task: solved, steps, repeated failures prevented, cost, time."""
    from ferrule.cli import batch_commands

    batch_commands.compare(first, second, as_json=as_json)


@batch_app.command("report")
def report_batch(
    folder: BatchFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: report.html in the folder.")] = None,
    compare_with: Annotated[
        Path | None, typer.Option("--compare", help="Another batch with the same tasks to compare with.")
    ] = None,
) -> None:
    """Write an HTML page with plots: one file that needs nothing else."""
    from ferrule.cli import batch_commands

    batch_commands.write_report(folder, output, compare_with)
