"""`ferrule models` and `ferrule eval`: which models can be used, storing their keys, and how well they do."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ferrule.cli import printing
from ferrule.cli.session import AsJson, Session, fail, open_output, run
from ferrule.cli.terminal import echo, print_error
from ferrule.core.names import did_you_mean
from ferrule.errors import MissingExtra, SetupError
from ferrule.models.choose import KEYED_PROVIDERS, ModelChoice, find_default, list_plugins, parse_model_spec
from ferrule.models.keys import StoredKeys, key_variable, model_environment
from ferrule.models.servers import LOCAL_SERVERS, ServerState, find_servers

if TYPE_CHECKING:
    from ferrule.evaluation import EvaluationResult
    from ferrule.evaluation.evaluate import TrialResult

models_app = typer.Typer(help="List the models that can be used, store keys.")


@dataclass(frozen=True, kw_only=True)
class ModelEntry:
    """One line of `ferrule models`."""

    model: str
    usable: bool
    reason: str
    """Where it is, or what it needs."""
    default: bool = False


@models_app.callback(invoke_without_command=True)
def list_models(context: typer.Context, as_json: AsJson = False) -> None:
    """List the models that can be used now, and what the others need. An asterisk marks the one that answers."""
    if context.invoked_subcommand is not None:
        return

    async def command() -> tuple[list[ModelEntry], ModelChoice]:
        environ = model_environment()
        servers = await asyncio.to_thread(find_servers, environ)
        choice = choose_for_project(context.obj, environ, servers)
        return list_entries(environ, servers, choice.spec), choice

    entries, choice = run(command())
    columns: printing.Columns = {
        "  model": lambda entry: ("* " if entry["default"] else "  ") + entry["model"],
        "usable": lambda entry: "yes" if entry["usable"] else "no",
        "why": "reason",
    }
    printing.print_list(list(map(asdict, entries)), columns, as_json=as_json, empty="")
    if sys.stdout.isatty() and not as_json:
        echo(f"\n{choice.spec} answers when no model is named, because {choice.reason}.")


@models_app.command("key")
def store_key(
    provider: Annotated[str | None, typer.Argument(help="openai, anthropic, groq …; none: list the keys.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Delete the stored key.")] = False,
    keyring: Annotated[bool, typer.Option("--keyring", help="Store it in the system's keyring.")] = False,
    as_json: AsJson = False,
) -> None:
    """Store the API key of a provider, which is typed or piped in and never shown.

    It is written into your configuration folder, where only you can read it, and never into a project.
    A variable such as OPENAI_API_KEY comes first.
    """
    keys = StoredKeys()
    if provider is None:
        rows = [{"key": key, "place": place} for key, place in keys.places().items()]
        if as_json:
            printing.print_json(keys.places())
        else:
            empty = "No key is stored. Store one: ferrule models key openai"
            printing.print_list(rows, {"key": "key", "stored in": "place"}, as_json=False, empty=empty)
        return
    variable = _variable_of(provider)
    if remove:
        if not keys.remove(variable):
            fail(f"There is no stored key for {provider}.", code=1)
        echo(f"Removed the key for {provider}.")
        return
    if sys.stdin.isatty():
        try:
            key = getpass.getpass(f"The API key for {provider} (it is not shown): ")
        except (EOFError, KeyboardInterrupt):
            fail("Stopped. Nothing was stored.", code=130)
    else:
        key = sys.stdin.readline()
    keys.store(variable, key, in_keyring=keyring)
    place = "the system's keyring" if keyring else str(keys.path)
    echo(f"Stored the key for {provider} in {place}.")


def _variable_of(provider: str) -> str:
    name = provider.strip().lower()
    names = (*KEYED_PROVIDERS, *LOCAL_SERVERS)
    if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
        raise SetupError(f"{provider!r} is not the name of a provider. Write openai, anthropic or groq, for example.")
    if name not in names and (hint := did_you_mean(name, names)):
        raise SetupError(
            f"Unknown provider {provider!r}.{hint} Providers with keys are {', '.join(names)} and litellm's."
        )
    return key_variable(name)


# What can be used


def choose_for_project(
    session: Session, environ: Mapping[str, str], servers: list[ServerState] | None = None
) -> ModelChoice:
    """Choose the model that answers in this project. The settings of a folder that is not trusted do not count."""
    named = session.config().agent.model if session.is_trusted else None
    if named is not None:
        return ModelChoice(spec=named, reason="[agent] model in ferrule.toml names it")
    return find_default(environ, servers)


def list_entries(environ: Mapping[str, str], servers: list[ServerState], default: str) -> list[ModelEntry]:
    """List every model that can be used, and what each provider without a model needs."""
    entries = [_keyed_entry(provider, environ) for provider in KEYED_PROVIDERS]
    for state in servers:
        prefix, where = state.server.prefix, f"{state.server.title} at {state.url}"
        problem = state.problem or _missing_package_problem("openai", "openai")
        if state.models:
            entries += [ModelEntry(model=spec, usable=not problem, reason=problem or where) for spec in state.specs]
        else:
            start = f". Start it with: {state.server.start}" if problem.startswith("no server") else ""
            entries.append(ModelEntry(model=f"{prefix}:…", usable=False, reason=f"{problem}{start}"))
    problem = _missing_package_problem("litellm", "litellm")
    entries.append(ModelEntry(model="litellm:…", usable=not problem, reason=problem or "any provider of litellm"))
    entries += [
        ModelEntry(model=f"{prefix}:…", usable=True, reason=f"the package {package}")
        for prefix, package in list_plugins().items()
    ]
    entries.append(ModelEntry(model="offline", usable=True, reason="needs nothing; answers what tools can answer"))
    if not any(entry.model == default for entry in entries):
        provider = default.partition(":")[0]
        source = next((entry for entry in entries if entry.model.partition(":")[0] == provider), None)
        usable = source is None or source.usable
        entries = [ModelEntry(model=default, usable=usable, reason=source.reason if source else ""), *entries]
    return [replace(entry, default=entry.model == default) for entry in entries]


def _keyed_entry(provider: str, environ: Mapping[str, str]) -> ModelEntry:
    variable, problem = key_variable(provider), _missing_package_problem(provider, provider)
    base_url = environ.get(f"{provider.upper()}_BASE_URL")
    if not problem and not (environ.get(variable) or base_url):
        problem = f"no key. Set {variable}, or run: ferrule models key {provider}"
    where = f"the server at {base_url}" if base_url else f"{variable} is there"
    return ModelEntry(model=provider, usable=not problem, reason=problem or where)


def explain_problem(spec: str, environ: Mapping[str, str]) -> str:
    """Explain why a chosen model cannot answer; empty if nothing is known against it."""
    try:
        provider, name = parse_model_spec(spec, environ)
    except SetupError as error:
        return str(error)
    if provider in KEYED_PROVIDERS:
        entry = _keyed_entry(provider, environ)
        return "" if entry.usable else entry.reason
    if provider in LOCAL_SERVERS:
        [state] = find_servers(environ, [provider])
        return state.problem or _missing_package_problem("openai", "openai")
    return _missing_package_problem("litellm", "litellm") if provider == "litellm" else ""


def _missing_package_problem(package: str, extra: str) -> str:
    return str(MissingExtra(package, extra)) if find_spec(package) is None else ""


# How well they do


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
    from ferrule.evaluation import Evaluator, read_suite
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
    printing.print_outcome(result.to_dict(), *result.sentences(), as_json=as_json)
    if not result.is_passed:
        raise typer.Exit(1)
