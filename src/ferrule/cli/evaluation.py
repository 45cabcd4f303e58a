"""`ferrule eval`, `ferrule tasks` and `ferrule simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ferrule.cli.session import AsJson

tasks_app = typer.Typer(help="Make tasks for batches.", no_args_is_help=True)


def evaluate(
    context: typer.Context,
    suite: Annotated[
        str, typer.Argument(help="A YAML file, or a suite that comes with Ferrule: arithmetic, inventory.")
    ],
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="For configurations that name no model; as for `ferrule ask`.")
    ] = None,
    repetitions: Annotated[int | None, typer.Option("--repetitions", "-n", min=1, help="Per task.")] = None,
    only: Annotated[
        list[str] | None, typer.Option("--configuration", "-c", help="Only this configuration; repeatable.")
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", help="Write the results as JUnit's XML.")] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Trials at a time.")] = 4,
    as_json: AsJson = False,
) -> None:
    """Run a suite of tasks with checks, and print how many pass, with 95 % intervals.

    Exit codes: 0 all trials passed, 1 some failed, 2 wrong usage.
    """
    from ferrule.cli.ask import select_model
    from ferrule.cli.printing import print_json
    from ferrule.cli.session import open_output, run
    from ferrule.cli.terminal import print_error
    from ferrule.errors import SetupError
    from ferrule.evaluation import EvaluationResult, Evaluator, read_suite
    from ferrule.evaluation.evaluate import TrialResult
    from ferrule.library.library import UnifiedToolLibrary

    def show_trial(trial: TrialResult) -> None:
        if trial.problems and not as_json:
            print_error(f"{trial.configuration} {trial.task} [{trial.repetition}]: {'; '.join(trial.problems)}")

    async def command() -> EvaluationResult:
        config = context.obj.config()
        loaded, folder = read_suite(suite)
        for name in only or ():
            if name not in loaded.configurations:
                raise SetupError(f"The suite has no configuration {name!r}: {', '.join(loaded.configurations)}.")
        async with UnifiedToolLibrary(engine=context.obj.engine(is_long=True), hub=config.hub) as library:
            evaluator = Evaluator(
                loaded,
                library,
                lambda name: select_model(config.agent, name or model),
                folder=folder,
                instructions=config.agent.instructions,
                concurrency=concurrency,
                on_trial=show_trial,
            )
            return await evaluator.run(repetitions=repetitions, only=only or ())

    result = run(command())
    if junit is not None:
        with open_output(junit) as file:
            file.write(result.to_junit())
    if as_json:
        print_json(result.to_dict())
    else:
        _print_evaluation(result)
    if not result.is_passed:
        raise typer.Exit(1)


def _print_evaluation(result: object) -> None:
    from ferrule.cli.terminal import echo
    from ferrule.evaluation import EvaluationResult

    assert isinstance(result, EvaluationResult)
    names = result.configurations
    for name in names:
        reliable = result.reliable_share(name)
        echo(f"{name}: {result.rate(name)}; in every repetition: {reliable:.0%} of the tasks")
        for task in dict.fromkeys(trial.task for trial in result.trials):
            echo(f"  {task}: {result.rate(name, task)}")
    for name in names[1:]:
        gained, lost, chance = result.compare(names[0], name)
        echo(f"{name} against {names[0]}: {gained} trials gained, {lost} lost (p = {chance:.2g})")


@tasks_app.command("from-runs")
def tasks_from_runs(
    context: typer.Context,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: standard output.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only runs since: 10m, 2h, 7d, or a date.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Also runs without an answer.")] = False,
) -> None:
    """Make tasks from recorded runs: what was asked, with which tools, and how it ended. Equal questions count once."""
    from ferrule.agent import AgentState
    from ferrule.cli.printing import format_count
    from ferrule.cli.session import open_output, parse_since, run
    from ferrule.cli.terminal import echo
    from ferrule.evaluation.tasks_from_runs import read_tasks_from_runs

    async def command() -> int:
        start = parse_since(since)
        states = frozenset(state.value for state in AgentState) if everything else frozenset({"finished"})
        number = 0
        async with context.obj.store() as store:
            with open_output(output) as file:
                async for task in read_tasks_from_runs(
                    store, states=states, since=0.0 if start is None else start.timestamp()
                ):
                    file.write(json.dumps(task.to_dict(), ensure_ascii=False) + "\n")
                    number += 1
        return number

    number = run(command())
    if output is not None:
        echo(f"{format_count(number, 'task')} written to {output}.")


def simulate_history(
    context: typer.Context,
    policy: Annotated[
        Path | None,
        typer.Option("--policy", help="A file like ferrule.toml with the policy to try."),
    ] = None,
    since: Annotated[str | None, typer.Option("--since", help="Only calls since: 10m, 2h, 7d, or a date.")] = "7d",
    memory: Annotated[bool | None, typer.Option("--memory/--no-memory", help="Prevent repeated failures.")] = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded calls under another policy, without calling any tool: what would have happened?"""
    import dataclasses

    from ferrule.cli.printing import print_json
    from ferrule.cli.session import parse_since, run
    from ferrule.cli.terminal import echo
    from ferrule.errors import SetupError
    from ferrule.simulation import SimulationResult, SimulationRules, simulate

    async def command() -> SimulationResult:
        if policy is None and memory is None:
            raise SetupError("Name what should be different: --policy FILE, --memory or --no-memory.")
        baseline = SimulationRules.of(context.obj.config())
        candidate = baseline if policy is None else baseline.with_file(policy)
        if memory is not None:
            candidate = dataclasses.replace(candidate, memory=memory)
        async with context.obj.engine(is_long=True) as engine:
            return await simulate(engine.store, engine.registry, baseline, candidate, since=parse_since(since))

    result = run(command())
    if as_json:
        print_json(result.to_dict())
        return
    for line in result.sentences():
        echo(line)
