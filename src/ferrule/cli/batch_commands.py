"""What the commands of `ferrule batch` do."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import typer

from ferrule.batch.compare import compare_directories
from ferrule.batch.directory import BatchDirectory, summarize
from ferrule.batch.formats import FORMATS, convert
from ferrule.batch.report import build_report
from ferrule.batch.runner import Batch, BatchProgress, BatchResult
from ferrule.batch.tasks import check_tasks, read_tasks
from ferrule.batch.waiting_model import WaitingModel
from ferrule.cli import printing
from ferrule.cli.batch_backends import (
    LOCAL,
    TaskSettings,
    build_model,
    build_task_limits,
    open_cluster_backend,
    open_local_backend,
    parse_place,
)
from ferrule.cli.session import EXIT_USAGE, Session, fail, open_output, parse_pairs, run
from ferrule.cli.terminal import echo, print_error
from ferrule.core.messages import text_of_message
from ferrule.core.names import did_you_mean
from ferrule.errors import FerruleError, SetupError
from ferrule.texts.shorten import single_line

EXIT_STOPPED = 9
PRINT_INTERVAL = 10.0
"""Seconds between lines of progress where there is no terminal."""


def run_batch(
    session: Session,
    tasks: str,
    out: Path,
    *,
    concurrency: int,
    model: str | None,
    tools: list[str] | None,
    budget: float | None,
    limits: Mapping[str, Any],
    patience: float,
    on: str,
    workers: int | None,
    resources: list[str] | None,
    as_json: bool,
) -> None:
    """Run a batch and print how it ended."""

    settings = TaskSettings(model=model, tools=tools, limits=limits, patience=patience)

    async def command() -> BatchResult:
        if on != LOCAL:
            parse_place(on)
        config = session.config()
        total = check_tasks(tasks)
        waiting_model, price = build_model(config, settings)
        build_task_limits(config.agent, limits, price)
        if budget is not None and price is None:
            raise SetupError(_explain_missing_price(waiting_model, "--budget"))
        backends = (
            open_local_backend(session, config, settings, waiting_model)
            if on == LOCAL
            else open_cluster_backend(
                session,
                settings,
                waiting_model,
                on=on,
                workers=workers,
                concurrency=concurrency,
                resources=_parse_resources(resources),
            )
        )
        async with backends as backend:
            with (
                BatchDirectory(out).open({"model": waiting_model.name}) as directory,
                ProgressDisplay(enabled=not as_json) as display,
            ):
                batch = Batch(
                    directory,
                    backend,
                    model=waiting_model,
                    concurrency=concurrency,
                    budget=budget,
                    on_progress=display.show,
                )
                _stop_on_signals(batch)
                return await batch.run(read_tasks(tasks), total=total)

    result = run(command())
    _print_result(result, out, as_json=as_json)
    if result.stopped:
        raise typer.Exit(130 if result.stopped.startswith("Ctrl-C") else EXIT_STOPPED)


def _parse_resources(pairs: list[str] | None) -> dict[str, float]:
    """`--resource NAME=AMOUNT` of the command."""
    try:
        return {name: float(amount) for name, amount in parse_pairs(pairs or (), "--resource").items()}
    except ValueError as error:
        raise SetupError(f"--resource takes NAME=AMOUNT, such as gpu=1: {error}.") from None


def _explain_missing_price(model: WaitingModel, option: str) -> str:
    return (
        f"{option} needs the price of {model.name!r}. Write it into ferrule.toml: "
        f'[prices.models."{model.name}"] with input and output, the prices of a million tokens.'
    )


def _stop_on_signals(batch: Batch) -> None:
    """Ctrl-C finishes the tasks in progress; a second one stops now."""
    requests = 0

    def stop() -> None:
        nonlocal requests
        requests += 1
        if requests == 1 and batch.progress.running:
            batch.stop("Ctrl-C")
            print_error("")  # behind the line with the progress
            print_error(
                f"ferrule: Stopping: {batch.progress.running} tasks in progress are finished first. "
                "Ctrl-C again stops now; they continue next time."
            )
        else:
            batch.interrupt("Ctrl-C")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)


class ProgressDisplay:
    """The progress of a batch: a line that changes on a terminal, else a line every few seconds."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._status: Any = None
        self._printed_at = time.monotonic()

    def __enter__(self) -> ProgressDisplay:
        if self._enabled and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("reading tasks …")
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, progress: BatchProgress) -> None:
        if self._status is not None:
            self._status.update(format_progress(progress))
        elif self._enabled and time.monotonic() - self._printed_at >= PRINT_INTERVAL:
            self._printed_at = time.monotonic()
            print_error(format_progress(progress))


def format_progress(progress: BatchProgress) -> str:
    """One line: how many, how fast, how long still, what failed."""
    total = "" if progress.total is None else f" of {progress.total:,}"
    parts = [f"{progress.done:,}{total} tasks", f"{progress.rate:.3g}/s"]
    if progress.seconds_left is not None:
        parts.append(f"{format_seconds(progress.seconds_left)} left")
    if progress.cost:
        parts.append(f"cost {progress.cost:.4g}")
    for name, counts in (("no answer", progress.failures), ("sent again", progress.retries)):
        if counts:
            details = ", ".join(f"{kind} {number:,}" for kind, number in counts.most_common(4))
            parts.append(f"{name} {sum(counts.values()):,} ({details})")
    return " · ".join(parts)


def format_seconds(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def _print_result(result: BatchResult, out: Path, *, as_json: bool) -> None:
    if as_json:
        printing.print_json(result.summary)
        return
    echo(format_progress(result.progress))
    if result.stopped:
        again = " ".join(map(shlex.quote, ["ferrule", *sys.argv[1:]]))
        print_error(f"ferrule: Stopped: {result.stopped}. Every finished task is stored. Continue with: {again}")
    else:
        echo(f"All tasks are done: {out}/trajectories.jsonl. Next: ferrule batch report {shlex.quote(str(out))}")


# Looking at a batch


def open_batch(folder: Path) -> BatchDirectory:
    try:
        return BatchDirectory.open_existing(folder)
    except FerruleError as error:
        fail(str(error), code=EXIT_USAGE)


def print_summary(folder: Path, *, as_json: bool) -> None:
    with open_batch(folder) as directory:
        summary = summarize(directory)
    if as_json:
        printing.print_json(summary)
        return
    usage, seconds = summary["usage"], summary["seconds"]
    states = ", ".join(f"{state} {number:,}" for state, number in summary["states"].items())
    echo(f"tasks: {summary['tasks']:,} ({states or 'none yet'})")
    if summary["failures"]:
        echo("without an answer: " + ", ".join(f"{kind} {number:,}" for kind, number in summary["failures"].items()))
    echo(
        f"turns: {summary['turns']:,}   calls: {summary['calls']:,}, of which {summary['failed_calls']:,} failed; "
        f"{summary['repeated_failures_prevented']:,} repeated failures prevented"
    )
    cost = "no prices are configured" if summary["cost"] is None else f"{summary['cost']:.6g}"
    echo(f"tokens: {usage['input_tokens']:,} in, {usage['output_tokens']:,} out   cost: {cost}")
    if seconds["p50"] is not None:
        echo("seconds per task: " + ", ".join(f"{name} {value:.3g}" for name, value in seconds.items()))


def list_tasks(folder: Path, *, failed: bool, limit: int, as_json: bool) -> None:
    where = "offset IS NOT NULL" + (" AND state != 'finished'" if failed else "")
    with open_batch(folder) as directory:
        rows = directory.query(
            f"SELECT id, state, failure, turns, calls, cost, seconds FROM tasks WHERE {where} ORDER BY offset LIMIT ?",
            [limit],
        ).fetchall()
    if as_json:
        names = ("id", "state", "failure", "turns", "calls", "cost", "seconds")
        printing.print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    printing.print_table(
        ("task", "state", "reason", "turns", "calls", "cost", "seconds"),
        [
            ["" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value) for value in r]
            for r in rows
        ],
        empty="No task matches.",
        cut=(0,),
    )


def show_trajectory(folder: Path, task_id: str, *, as_json: bool) -> None:
    with open_batch(folder) as directory:
        trajectory = directory.find(task_id)
    if trajectory is None:
        fail(f"{folder} has no trajectory of the task {task_id!r}. List them: ferrule batch show {folder}", code=1)
    if as_json:
        printing.print_json(trajectory)
        return
    for message in trajectory["messages"]:
        if text := text_of_message(message):
            echo(f"{message['role']}: {text}")
        for call in message.get("tool_calls") or ():
            echo(f"{message['role']} calls {call['function']['name']} {call['function']['arguments']}")
    reason = f" ({single_line(trajectory['reason'])})" if trajectory.get("reason") else ""
    echo(f"task {task_id}: {trajectory['state']}{reason}")


def export(folder: Path, form: str, output: Path | None, *, finished: bool) -> None:
    if form not in FORMATS:
        fail(f"There is no format {form!r}.{did_you_mean(form, FORMATS)} Write {', '.join(FORMATS)}.", code=EXIT_USAGE)
    number = 0
    with (
        open_batch(folder) as directory,
        open_output(output) as file,
    ):
        for trajectory in directory.read():
            if finished and trajectory["state"] != "finished":
                continue
            try:
                line = convert(trajectory, form)
            except FerruleError as error:
                fail(str(error), code=EXIT_USAGE)
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            number += 1
    if output is not None:
        echo(f"{printing.format_count(number, 'task')} written to {output}.")


def compare(first: Path, second: Path, *, as_json: bool) -> None:
    with open_batch(first) as a, open_batch(second) as b:
        comparison = compare_directories(a, b)
    if as_json:
        printing.print_json(comparison.to_dict())
        return
    for line in comparison.sentences():
        echo(line)


def write_report(folder: Path, output: Path | None, compare_with: Path | None) -> None:
    path = output or folder / "report.html"
    with (
        open_batch(folder) as directory,
        open_batch(compare_with) if compare_with is not None else nullcontext() as other,
    ):
        page = build_report(directory, other)
    with open_output(path) as file:
        file.write(page)
    echo(f"Written: {path}")
