"""Where the tasks of `ferrule batch run` run: in this process, or with workers on the nodes of a cluster.

A worker on a node makes the same engine as this process would, from the configuration that it is sent. It needs the
project's files: at the same path, or sent along as `working_dir` of `runtime_env` in `[cluster]`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Final

from ferrule.agent import RunLimits
from ferrule.batch import BatchBackend, ClusterBackend, LocalBackend, WaitingModel
from ferrule.batch.local import BATCH_PRIORITY
from ferrule.cli.ask import check_tools_exist, select_model
from ferrule.cli.session import Session
from ferrule.cluster import ClusterExecutor, connect, disconnect
from ferrule.config import AgentSection, FerruleConfig
from ferrule.core.names import did_you_mean
from ferrule.core.prices import ModelPrice
from ferrule.errors import SetupError
from ferrule.library.library import UnifiedToolLibrary
from ferrule.models.keys import StoredKeys

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


def build_backend(
    config: FerruleConfig, library: UnifiedToolLibrary, settings: TaskSettings, model: WaitingModel
) -> LocalBackend:
    check_tools_exist(settings.tools, library)
    library.engine.concurrency.yield_to_others()
    price = config.price_list.find_model_price(model.name)
    return LocalBackend(
        library,
        model,
        instructions=config.agent.instructions,
        tools=settings.tools if settings.tools is not None else config.agent.tools,
        core_tools=config.agent.core_tools,
        limits=build_task_limits(config.agent, settings.limits, price),
    )


def build_task_limits(section: AgentSection, limits: Mapping[str, Any], price: ModelPrice | None) -> RunLimits:
    """The limits of one task: options of the command, else those of the project."""
    values = {name: limits.get(name) or getattr(section, name) for name in ("turns", "tokens", "seconds", "cost")}
    if values["cost"] is not None and price is None:
        raise SetupError("A limit on the cost of a task needs prices: write them into [prices.models] of ferrule.toml.")
    price_function = None if price is None else price.cost_of
    return RunLimits(**values, calls=section.calls, price=price_function, priority=BATCH_PRIORITY)


# In this process


@asynccontextmanager
async def open_local_backend(
    session: Session, config: FerruleConfig, settings: TaskSettings, model: WaitingModel
) -> AsyncIterator[BatchBackend]:
    engine = session.engine(is_long=True)
    async with UnifiedToolLibrary(engine=engine, hub=config.hub) as library:
        backend = build_backend(config, library, settings, model)
        try:
            yield backend
        finally:
            await backend.aclose()


# On a cluster


def parse_place(on: str) -> str | None:
    """The address of the cluster that `--on` names; None for this machine's own, or one that is found."""
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
            variables=_collect_variables(section.environment),
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


def _collect_variables(names: list[str]) -> dict[str, str]:
    """Keys and settings that a worker gets, in memory only."""
    stored = StoredKeys().get_all()
    found_here = {
        name: value
        for name, value in os.environ.items()
        if name in names or name.startswith("FERRULE_") or name.endswith(FORWARDED_VARIABLES)
    }
    return {**stored, **found_here}


def identify_folder(folder: Path) -> tuple[str, int, int]:
    """The machine and the folder: locks of files work only between processes of one machine."""
    try:
        machine = _BOOT_ID.read_text().strip()
    except OSError:
        machine = os.uname().nodename
    status = folder.stat()
    return machine, status.st_dev, status.st_ino


@asynccontextmanager
async def open_node_backend(project: NodeProject) -> AsyncIterator[LocalBackend]:
    """The back end of a worker, on its node."""
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
        engine = config.engine()
        engine.register_executor("cluster", ClusterExecutor())
        async with UnifiedToolLibrary(engine=engine, hub=config.hub) as library:
            for error in engine.load_errors:
                logger.warning("not loaded: %s", error)
            model, _ = build_model(config, project.settings)
            if model.name != project.model_name:
                raise SetupError(
                    f"The node {os.uname().nodename} would use the model {model.name!r}, not {project.model_name!r}. "
                    "Name the model with --model, and give the nodes what it needs."
                )
            backend = build_backend(config, library, project.settings, model)
            try:
                yield backend
            finally:
                await backend.aclose()


def _find_reachable_store(project: NodeProject, own_folder: str) -> str | None:
    """The address of the project's store; of one of the worker's own where that is a file of another machine."""
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
