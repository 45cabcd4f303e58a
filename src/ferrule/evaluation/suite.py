"""A suite: tasks with checks, the configurations to compare, and how often each task is repeated. Read from YAML.

A check is about the answer, the calls, the state of a tool, or a judgement of a model.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ferrule.core.call import Caller
from ferrule.core.content import as_text
from ferrule.core.model import Model, ModelRequest
from ferrule.errors import FerruleError, SetupError, error_text
from ferrule.texts.shorten import single_line

JUDGE_PROMPT = (
    "Does the answer meet the requirement? Judge only that.\n\nTask: {task}\n\nAnswer: {answer}\n\n"
    "Requirement: {requirement}\n\nReply with yes or no, then the reason in one sentence."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRun:
    """What checks look at."""

    trajectory: Mapping[str, Any]
    caller: Caller
    """To look at the state of tools."""
    judge: Model
    environment: Any = None

    @property
    def answer(self) -> str:
        return str(self.trajectory["answer"])


async def find_problem(check: Mapping[str, Any], run: CheckedRun) -> str | None:
    """Say what is wrong with a run according to a check; None if nothing is."""
    [(kind, expected)] = check.items()
    try:
        return await CHECKS[kind](expected, run)
    except FerruleError:
        raise
    except Exception as error:  # the check is the user's code, or does not fit the answer
        return f"the check {kind} failed: {type(error).__name__}: {error_text(error)}"


async def _check_exact(expected: Any, run: CheckedRun) -> str | None:
    is_equal = run.answer.strip() == str(expected).strip()
    return None if is_equal else f"the answer is {_quote(run.answer)}, not {expected!r}"


async def _check_contains(expected: Any, run: CheckedRun) -> str | None:
    texts = expected if isinstance(expected, list) else [expected]
    missing = [str(text) for text in texts if str(text).casefold() not in run.answer.casefold()]
    return f"the answer {_quote(run.answer)} does not contain {', '.join(map(repr, missing))}" if missing else None


async def _check_regex(expected: Any, run: CheckedRun) -> str | None:
    return None if re.search(str(expected), run.answer) else f"{_quote(run.answer)} does not match {expected!r}"


async def _check_json(expected: Any, run: CheckedRun) -> str | None:
    """Compare a value inside a JSON answer: `{"path": "$.items[0].price", "equals": 3}`."""
    text = run.answer.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    value = find_in_json(json.loads(text), str(expected["path"]))
    return None if value == expected["equals"] else f"{expected['path']} is {value!r}, not {expected['equals']!r}"


def find_in_json(value: Any, path: str) -> Any:
    """Return the value at a path such as `$.items[0].price`. Raises LookupError if the path leads nowhere."""
    if not path.startswith("$"):
        raise SetupError(f"A JSON path starts with $, such as $.items[0].price; {path!r} does not.")
    for name, index in re.findall(r"\.([^.\[\]]+)|\[(-?\d+)\]", path):
        try:
            value = value[int(index)] if index else value[name]
        except (LookupError, TypeError):
            raise LookupError(f"the answer has nothing at {path}") from None
    return value


async def _check_python(expected: Any, run: CheckedRun) -> str | None:
    """Evaluate an expression of `answer`, `trajectory`, `calls` and `environment`. Suites are trusted like code."""
    names = {
        "answer": run.answer,
        "trajectory": run.trajectory,
        "calls": run.trajectory.get("calls", []),
        "environment": run.environment,
        "json": json,
        "re": re,
    }
    return None if eval(str(expected), names) else f"{expected} is not true for {_quote(run.answer)}"


async def _check_state(expected: Any, run: CheckedRun) -> str | None:
    """Compare what a tool returns after the run: `{"tool": …, "action": …, "arguments": {…}, "equals": …}`.

    With the text `environment`, the environment checks its own final state.
    """
    if expected == "environment":
        if run.environment is None:
            raise SetupError("The check `state: environment` needs a suite with an environment.")
        problem = run.environment.check_state(dict(run.trajectory.get("metadata", {})))
        return None if problem is None else str(problem)
    result = await run.caller.execute(expected["tool"], expected.get("arguments") or {}, action=expected.get("action"))
    if not result.is_success:
        return f"{expected['tool']} could not be asked for its state: {result.error}"
    value = result.output["result"] if set(result.output) == {"result"} else result.output
    if value == expected["equals"] or as_text(value) == as_text(expected["equals"]):
        return None
    return f"{expected['tool']} has the state {value!r}, not {expected['equals']!r}"


async def _check_calls(expected: Any, run: CheckedRun) -> str | None:
    """Count successful calls: `{"tool": "calculator", "times": 1}`, or a name for at least one call."""
    expected = expected if isinstance(expected, Mapping) else {"tool": expected}
    calls = [c for c in run.trajectory.get("calls", ()) if c["tool"] == expected["tool"] and c["status"] == "success"]
    if "times" in expected:
        number = expected["times"]
        return None if len(calls) == number else f"{expected['tool']} was called {len(calls)} times, not {number}"
    return None if calls else f"{expected['tool']} was not called with success"


async def _check_judge(expected: Any, run: CheckedRun) -> str | None:
    prompt = JUDGE_PROMPT.format(task=run.trajectory["task"], answer=run.answer, requirement=expected)
    reply = (await run.judge.generate(ModelRequest.of(prompt))).text.strip()
    is_met = re.match(r"\W*(yes|是)", reply, re.IGNORECASE) is not None
    return None if is_met else f"{run.judge.name} judges that it is not met: {single_line(reply)[:200]}"


def _quote(text: str) -> str:
    return repr(text if len(text) <= 120 else f"{text[:119]}…")


CHECKS: dict[str, Callable[[Any, CheckedRun], Awaitable[str | None]]] = {
    "exact": _check_exact,
    "contains": _check_contains,
    "regex": _check_regex,
    "json": _check_json,
    "python": _check_python,
    "state": _check_state,
    "calls": _check_calls,
    "judge": _check_judge,
}


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
