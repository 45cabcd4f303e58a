"""`ferrule batch` and `tasks`: run many tasks, here or on the nodes of a cluster, and look at their trajectories."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ferrule.agent import AgentState
from ferrule.batch import BatchBackend, ClusterBackend, LocalBackend, WaitingModel
from ferrule.batch.backends import BATCH_PRIORITY
from ferrule.batch.directory import TASK_COLUMNS, BatchDirectory, format_task_value, summarize
from ferrule.batch.formats import FORMATS, convert
from ferrule.batch.report import build_report, compare_directories
from ferrule.batch.runner import Batch, BatchProgress, BatchResult
from ferrule.batch.tasks import check_tasks, read_tasks, read_tasks_from_runs
from ferrule.cli import printing
from ferrule.cli.ask import build_limits, check_tools_exist, select_model
from ferrule.cli.session import (
    EXIT_STOPPED,
    AsJson,
    Output,
    Session,
    fail,
    open_output,
    parse_pairs,
    parse_since,
    run,
    run_with_store,
)
from ferrule.cli.terminal import echo, print_error
from ferrule.cluster import ClusterExecutor, connect, disconnect
from ferrule.config import FerruleConfig
from ferrule.core.names import did_you_mean
from ferrule.core.prices import ModelPrice
from ferrule.engine import ToolEngine
from ferrule.errors import SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.models.keys import StoredKeys
from ferrule.store import ToolKnowledgeStore
from ferrule.texts.shorten import single_line

batch_app = typer.Typer(help="Run many tasks, each exactly once, and look at their trajectories.", no_args_is_help=True)
tasks_app = typer.Typer(help="Make tasks for batches.", no_args_is_help=True)

BatchFolder = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the batch.")]


@batch_app.command("run")
def run_batch(
    context: typer.Context,
    tasks: Annotated[str, typer.Argument(help="A file with one JSON object per line; - for standard input.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the trajectories.")],
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Tasks at a time.")] = 8,
    model: Annotated[str | None, typer.Option("--model", "-m", help="As for `ferrule ask`.")] = None,
    tools: Annotated[list[str] | None, typer.Option("--tool", "-t", help="Use only this tool; repeatable.")] = None,
    budget: Annotated[
        float | None, typer.Option("--budget", min=0, help="The maximum cost of all tasks together.")
    ] = None,
    turns: Annotated[int | None, typer.Option("--turns", min=1, help="Turns per task.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Tokens per task.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--timeout", min=0.001, help="Seconds per task, without waits for the model's server."),
    ] = None,
    cost: Annotated[float | None, typer.Option("--cost", min=0, help="The maximum cost of each task.")] = None,
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
    session: Session = context.obj
    limits = {"turns": turns, "tokens": tokens, "seconds": seconds, "cost": cost}
    settings = TaskSettings(model=model, tools=tools, limits=limits, patience=patience)

    async def command() -> BatchResult:
        if on != LOCAL:
            parse_place(on)
        try:
            pairs = parse_pairs(resources or (), "--resource")
            amounts = {name: float(amount) for name, amount in pairs.items()}
        except ValueError as error:
            raise SetupError(f"--resource takes NAME=AMOUNT, such as gpu=1: {error}.") from None
        config = session.config()
        total = check_tasks(tasks)
        waiting_model, price = build_model(config, settings)
        build_limits(config.agent, price, limits)
        if budget is not None and price is None:
            raise SetupError(
                f"--budget needs the price of {waiting_model.name!r}. Write it into ferrule.toml: "
                f'[prices.models."{waiting_model.name}"] with input and output, the prices of a million tokens.'
            )
        backends = (
            open_local_backend(session.engine(is_long=True), config, settings, waiting_model)
            if on == LOCAL
            else open_cluster_backend(
                session,
                settings,
                waiting_model,
                on=on,
                workers=workers,
                concurrency=concurrency,
                resources=amounts,
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
    lines = [format_progress(result.progress)]
    if not result.stopped:
        folder = shlex.quote(str(out))
        lines.append(f"All tasks are done: {out}/trajectories.jsonl. Next: ferrule batch report {folder}")
    printing.print_outcome(result.summary, *lines, as_json=as_json)
    if result.stopped:
        if not as_json:
            again = " ".join(map(shlex.quote, ["ferrule", *sys.argv[1:]]))
            print_error(f"ferrule: Stopped: {result.stopped}. Every finished task is stored. Continue with: {again}")
        raise typer.Exit(130 if result.stopped.startswith("Ctrl-C") else EXIT_STOPPED)


@batch_app.command("summary")
def summarize_batch(folder: BatchFolder, as_json: AsJson = False) -> None:
    """Print the totals of a batch."""
    with BatchDirectory.open_existing(folder) as directory:
        summary = summarize(directory)
    usage, seconds = summary["usage"], summary["seconds"]
    states = ", ".join(f"{state} {number:,}" for state, number in summary["states"].items())
    lines = [f"tasks: {summary['tasks']:,} ({states or 'none yet'})"]
    if summary["failures"]:
        failures = ", ".join(f"{kind} {number:,}" for kind, number in summary["failures"].items())
        lines.append(f"without an answer: {failures}")
    lines.append(
        f"turns: {summary['turns']:,}   calls: {summary['calls']:,}, of which {summary['failed_calls']:,} failed; "
        f"{summary['repeated_failures_prevented']:,} repeated failures prevented"
    )
    cost = "no prices are configured" if summary["cost"] is None else f"{summary['cost']:.6g}"
    lines.append(f"tokens: {usage['input_tokens']:,} in, {usage['output_tokens']:,} out   cost: {cost}")
    if seconds["p50"] is not None:
        lines.append("seconds per task: " + ", ".join(f"{name} {value:.3g}" for name, value in seconds.items()))
    printing.print_outcome(summary, *lines, as_json=as_json)


@batch_app.command("show")
def show_trajectory(
    folder: BatchFolder,
    task_id: Annotated[str | None, typer.Argument(help="The id of a task; without it, the tasks are listed.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List only tasks without an answer.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number in the list.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the trajectory of a task, or list the tasks."""
    with BatchDirectory.open_existing(folder) as directory:
        if task_id is None:
            tasks = directory.list_tasks("state != 'finished'" if failed else "TRUE", "offset", limit)
            titles = ("task", "state", "reason", "turns", "calls", "cost", "seconds")
            columns: printing.Columns = {
                title: lambda task, name=name: format_task_value(task[name])  # type: ignore[misc]
                for title, name in zip(titles, TASK_COLUMNS, strict=True)
            }
            printing.print_list(tasks, columns, as_json=as_json, empty="No task matches.", cut=(0,))
            return
        trajectory = directory.find(task_id)
    if trajectory is None:
        fail(f"{folder} has no trajectory of the task {task_id!r}. List them: ferrule batch show {folder}", code=1)
    if as_json:
        printing.print_json(trajectory)
        return
    printing.print_messages(trajectory["messages"])
    reason = f" ({single_line(trajectory['reason'])})" if trajectory.get("reason") else ""
    echo(f"task {task_id}: {trajectory['state']}{reason}")


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
    if form not in FORMATS:
        fail(f"There is no format {form!r}.{did_you_mean(form, FORMATS)} Write {', '.join(FORMATS)}.")
    number = 0
    with BatchDirectory.open_existing(folder) as directory, open_output(output) as file:
        for trajectory in directory.read():
            if finished and trajectory["state"] != "finished":
                continue
            file.write(json.dumps(convert(trajectory, form), ensure_ascii=False) + "\n")
            number += 1
    if output is not None:
        echo(f"{printing.format_count(number, 'task')} written to {output}.")


@batch_app.command("compare")
def compare_batches(
    first: Annotated[Path, typer.Argument(metavar="A", help="The folder of a batch.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="The folder of another one with the same tasks.")],
    as_json: AsJson = False,
) -> None:
    """Compare two batches task by task: solved, steps, repeated failures prevented, cost, time."""
    with BatchDirectory.open_existing(first) as a, BatchDirectory.open_existing(second) as b:
        comparison = compare_directories(a, b)
    printing.print_outcome(comparison.to_dict(), *comparison.sentences(), as_json=as_json)


@batch_app.command("report")
def report_batch(
    folder: BatchFolder,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: report.html in the folder.")] = None,
    compare_with: Annotated[
        Path | None, typer.Option("--compare", help="Another batch with the same tasks to compare with.")
    ] = None,
) -> None:
    """Write an HTML page with plots: one file that needs nothing else."""
    path = output or folder / "report.html"
    with (
        BatchDirectory.open_existing(folder) as directory,
        BatchDirectory.open_existing(compare_with) if compare_with is not None else nullcontext() as other,
    ):
        page = build_report(directory, other)
    with open_output(path) as file:
        file.write(page)
    echo(f"Written: {path}")


@tasks_app.command("from-runs")
def tasks_from_runs(
    context: typer.Context,
    output: Output = None,
    since: Annotated[str | None, typer.Option("--since", help="Only runs since: 10m, 2h, 7d, or a date.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also runs without an answer.")] = False,
) -> None:
    """Make tasks from recorded runs: what was asked, with which tools, and how it ended. Equal questions count once."""
    start = parse_since(since)
    states = frozenset(state.value for state in AgentState) if everything else frozenset({"finished"})

    async def write(store: ToolKnowledgeStore) -> int:
        number = 0
        with open_output(output) as file:
            async for task in read_tasks_from_runs(
                store, states=states, since=0.0 if start is None else start.timestamp()
            ):
                file.write(json.dumps(task.to_dict(), ensure_ascii=False) + "\n")
                number += 1
        return number

    number = run_with_store(context.obj, write)
    if output is not None:
        echo(f"{printing.format_count(number, 'task')} written to {output}.")


PRINT_INTERVAL = 10.0
"""Seconds between lines of progress without a terminal."""


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
    """Describe the progress in one line: how many tasks, how fast, how long still, what failed."""
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


logger = logging.getLogger("ferrule.batch")

LOCAL, RAY = "local", "ray"
FORWARDED_VARIABLES: Final = ("_API_KEY", "_BASE_URL")
"""Endings of variables that workers get: a model on a node needs the same keys."""
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """What the options of the command say about each task."""

    model: str | None = None
    tools: list[str] | None = None
    limits: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    patience: float = 3600.0


def build_model(config: FerruleConfig, settings: TaskSettings) -> tuple[WaitingModel, ModelPrice | None]:
    chosen = select_model(config.agent, settings.model)
    price = config.price_list.find_model_price(chosen.name)
    return WaitingModel(chosen, patience=settings.patience, price=price), price


@asynccontextmanager
async def open_local_backend(
    engine: ToolEngine, config: FerruleConfig, settings: TaskSettings, model: WaitingModel
) -> AsyncIterator[LocalBackend]:
    """Open the back end of this process, here or on a node, with the engine of the project."""
    price = config.price_list.find_model_price(model.name)
    async with UnifiedToolLibrary(engine=engine, hub=config.hub) as library:
        check_tools_exist(settings.tools, library)
        library.engine.concurrency.yield_to_others()
        backend = LocalBackend(
            library,
            model,
            instructions=config.agent.instructions,
            tools=settings.tools if settings.tools is not None else config.agent.tools,
            core_tools=config.agent.core_tools,
            limits=build_limits(config.agent, price, settings.limits, priority=BATCH_PRIORITY),
        )
        try:
            yield backend
        finally:
            await backend.aclose()


# On a cluster


def parse_place(on: str) -> str | None:
    """Return the address of the cluster that `--on` names; None if Ray is to find or start one."""
    if on == RAY:
        return None
    if ":" in on:
        return on
    hint = did_you_mean(on, (LOCAL, RAY))
    raise SetupError(f"There is no place {on!r} to run a batch.{hint} Write --on local, ray or ray://HOST:PORT.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeProject:
    """What a worker on a node needs to make the engine of the project."""

    config: FerruleConfig
    settings: TaskSettings
    model_name: str
    """Of the model that the command chose: a node where another one would be chosen is not used."""
    variables: Mapping[str, str]
    """Keys and settings of the command, in memory only."""
    is_sent_along: bool
    """Whether the project's folder is the working directory of the worker."""
    store_folder: tuple[str, int, int] | None
    """Which folder of which machine the store is in; None for one that all machines can reach."""


@asynccontextmanager
async def open_cluster_backend(
    session: Session,
    settings: TaskSettings,
    model: WaitingModel,
    *,
    on: str,
    workers: int | None,
    concurrency: int,
    resources: Mapping[str, float],
) -> AsyncIterator[BatchBackend]:
    config = session.project()
    section = config.cluster
    runtime_env = section.runtime_env_under(config.root)
    ray = await asyncio.to_thread(connect, parse_place(on) or section.address, runtime_env=runtime_env)
    try:
        store_file = config.store_file
        if store_file is not None:
            store_file.parent.mkdir(parents=True, exist_ok=True)
        project = NodeProject(
            config=dataclasses.replace(config, root=config.root.absolute()),
            settings=settings,
            model_name=model.name,
            variables={
                **StoredKeys().get_all(),
                **{
                    name: value
                    for name, value in os.environ.items()
                    if name in section.environment or name.startswith("FERRULE_") or name.endswith(FORWARDED_VARIABLES)
                },
            },
            is_sent_along="working_dir" in runtime_env,
            store_folder=None if store_file is None else identify_folder(store_file.parent),
        )
        cpus = int(ray.cluster_resources().get("CPU", 1))
        backend = ClusterBackend(
            partial(open_node_backend, project),
            workers=min(workers or max(cpus, 1), concurrency),
            concurrency=concurrency,
            resources=resources,
            model=model,
        )
        try:
            with redirect_stdout(sys.stderr):  # Ray's client prints there what happens to nodes
                yield backend
        finally:
            await backend.aclose()
    finally:
        await asyncio.to_thread(disconnect)


def identify_folder(folder: Path) -> tuple[str, int, int]:
    """Identify a folder and its machine: locks of files work only between processes of one machine."""
    try:
        machine = _BOOT_ID.read_text().strip()
    except OSError:
        machine = os.uname().nodename
    status = folder.stat()
    return machine, status.st_dev, status.st_ino


@asynccontextmanager
async def open_node_backend(project: NodeProject) -> AsyncIterator[LocalBackend]:
    """Open the back end of a worker, on its node."""
    os.environ.update(project.variables)
    config = project.config
    root = Path.cwd() if project.is_sent_along else config.root
    if not root.is_dir():
        raise SetupError(
            f"The node {os.uname().nodename} has no folder {root}. Share it with all nodes, or send it along: "
            'write runtime_env = { working_dir = "." } into [cluster] of ferrule.toml.'
        )
    os.chdir(root)
    with tempfile.TemporaryDirectory(prefix="ferrule-batch-", ignore_cleanup_errors=True) as folder:
        store = config.store.model_copy(update={"url": _find_reachable_store(project, folder)})
        config = dataclasses.replace(config, root=root, store=store)
        model, _ = build_model(config, project.settings)
        if model.name != project.model_name:
            raise SetupError(
                f"The node {os.uname().nodename} would use the model {model.name!r}, not {project.model_name!r}. "
                "Name the model with --model, and give the nodes what it needs."
            )
        engine = config.engine()
        engine.register_executor("cluster", ClusterExecutor())
        async with open_local_backend(engine, config, project.settings, model) as backend:
            yield backend


def _find_reachable_store(project: NodeProject, own_folder: str) -> str | None:
    """Return the address of the project's store. A file of another machine is replaced by a store of the worker."""
    file = project.config.store_file
    if file is None or project.store_folder is None:
        return project.config.store.url
    if file.parent.is_dir() and identify_folder(file.parent) == project.store_folder:
        return f"sqlite:///{file}"
    logger.warning(
        "The store is a file of another machine, so this worker has its own: a task whose worker is lost starts "
        "again. Use a Postgres store to continue it."
    )
    return f"sqlite:///{own_folder}/calls.db"
