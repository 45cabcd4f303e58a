"""A suite: tasks with checks, the configurations to compare, and how often each task is repeated. Read from YAML."""

from __future__ import annotations

import importlib
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ferrule.errors import SetupError, error_text
from ferrule.evaluation.checks import CHECKS


class Environment(Protocol):
    """A small world that a task is done in, with tools that change it and a check of its final state.

    It is made anew for every repetition of every task. Other public methods are its tools.
    """

    def reset(self, metadata: dict[str, Any], /) -> None:
        """Bring the world into the state in which the task begins."""

    def check_state(self, metadata: dict[str, Any], /) -> str | None:
        """Return what is wrong with the final state; None if nothing is."""


class _SuiteModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SuiteTask(_SuiteModel):
    """One task and what its result must be."""

    id: str
    task: str
    tools: tuple[str, ...] | None = None
    metadata: dict[str, Any] = {}
    checks: tuple[dict[str, Any], ...] = ()

    @field_validator("checks")
    @classmethod
    def _check_kinds(cls, checks: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
        for check in checks:
            if len(check) != 1 or next(iter(check)) not in CHECKS:
                raise ValueError(f"a check has one of the keys {', '.join(CHECKS)}, not {sorted(check)}")
        return checks


class SuiteConfiguration(_SuiteModel):
    """What is evaluated: a model with instructions, tools and limits. Empty values: as in the project."""

    model: str | None = None
    instructions: str | None = None
    tools: tuple[str, ...] | None = None
    turns: int | None = None
    memory: bool = True


class Suite(_SuiteModel):
    """A whole suite."""

    name: str
    description: str = ""
    repetitions: int = Field(default=1, ge=1)
    environment: str | None = None
    """`package.module:Class` of an `Environment`; relative modules are found beside the file."""
    judge: str | None = None
    """The model that answers checks of the kind `judge`; by default the configuration's."""
    configurations: dict[str, SuiteConfiguration] = {"default": SuiteConfiguration()}
    tasks: tuple[SuiteTask, ...] = Field(min_length=1)

    @field_validator("tasks")
    @classmethod
    def _check_unique_ids(cls, tasks: tuple[SuiteTask, ...]) -> tuple[SuiteTask, ...]:
        ids = [task.id for task in tasks]
        if double := next((task_id for task_id in ids if ids.count(task_id) > 1), None):
            raise ValueError(f"two tasks have the id {double!r}")
        return tasks


def read_suite(name: str) -> tuple[Suite, Path | None]:
    """Read a suite from a file, or a suite that comes with Ferrule by its name. Returns also the file's folder."""
    path = Path(name)
    is_file = path.suffix in (".yaml", ".yml") or path.exists()
    if is_file:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise SetupError(f"The suite {name} cannot be read: {error.strerror}.") from None
    else:
        if name not in list_suites():
            raise SetupError(f"There is no suite {name!r}. Name a YAML file, or one of: {', '.join(list_suites())}.")
        text = (files("ferrule.evaluation") / "suites" / f"{name}.yaml").read_text(encoding="utf-8")
    try:
        return Suite.model_validate(yaml.safe_load(text)), path.parent if is_file else None
    except yaml.YAMLError as error:
        raise SetupError(f"{name}: not valid YAML: {error}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise SetupError(f"{name}: {where or 'suite'}: {problem['msg']}") from None


def list_suites() -> list[str]:
    """List the suites that come with Ferrule."""
    folder = files("ferrule.evaluation") / "suites"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_environment(location: str, folder: Path | None) -> type[Environment]:
    """Import the class of an environment."""
    module_name, _, class_name = location.partition(":")
    if folder is not None and str(folder.resolve()) not in sys.path:
        sys.path.insert(0, str(folder.resolve()))
    try:
        environment_class: Any = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:
        raise SetupError(f"The environment {location!r} cannot be loaded: {error_text(error)}") from error
    if not all(callable(getattr(environment_class, name, None)) for name in ("reset", "check_state")):
        raise SetupError(f"The environment {location!r} needs the methods reset and check_state.")
    environment: type[Environment] = environment_class
    return environment
