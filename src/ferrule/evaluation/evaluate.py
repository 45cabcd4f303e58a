"""Running a suite: every configuration, every task, every repetition; then rates with intervals, and JUnit's XML."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any, Final
from uuid import uuid4
from xml.etree import ElementTree

from ferrule.agent import RunLimits
from ferrule.batch.backends import LocalBackend
from ferrule.batch.report import sign_test
from ferrule.batch.tasks import BatchTask
from ferrule.batch.waiting_model import WaitingModel
from ferrule.core.model import Model
from ferrule.engine import ToolEngineConfig
from ferrule.engine.config import NO_FOLDER
from ferrule.evaluation.suite import (
    CheckedRun,
    Environment,
    Suite,
    SuiteConfiguration,
    SuiteTask,
    find_problem,
    load_environment,
)
from ferrule.library.library import UnifiedToolLibrary

Z_95: Final = 1.959964
"""Of a normal distribution, for intervals that contain the true rate 95 times of 100."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One repetition of one task under one configuration."""

    configuration: str
    task: str
    repetition: int
    problems: list[str]
    answer: str
    seconds: float
    cost: float | None
    calls: int
    trajectory: dict[str, Any] = field(repr=False)

    @property
    def is_passed(self) -> bool:
        return not self.problems


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A share with its 95 % interval (Wilson)."""

    passed: int
    trials: int
    low: float
    high: float

    @property
    def share(self) -> float:
        return self.passed / self.trials if self.trials else 0.0

    def __str__(self) -> str:
        return f"{self.share:.0%} ({self.passed}/{self.trials}, 95 %: {self.low:.0%} to {self.high:.0%})"


def wilson_interval(passed: int, trials: int) -> tuple[float, float]:
    """Compute between which rates the true one lies, with 95 % confidence, also for few trials and extreme rates."""
    if not trials:
        return 0.0, 1.0
    share, z2 = passed / trials, Z_95**2
    middle = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = Z_95 / (1 + z2 / trials) * sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """The results of a suite."""

    suite: str
    trials: list[TrialResult]

    @property
    def configurations(self) -> list[str]:
        return list(dict.fromkeys(trial.configuration for trial in self.trials))

    @property
    def is_passed(self) -> bool:
        return all(trial.is_passed for trial in self.trials)

    def select(self, configuration: str, task: str | None = None) -> list[TrialResult]:
        return [t for t in self.trials if t.configuration == configuration and task in (None, t.task)]

    def rate(self, configuration: str, task: str | None = None) -> Rate:
        passed = [trial.is_passed for trial in self.select(configuration, task)]
        low, high = wilson_interval(sum(passed), len(passed))
        return Rate(passed=sum(passed), trials=len(passed), low=low, high=high)

    def reliable_share(self, configuration: str) -> float:
        """Return the share of tasks that passed in every repetition (tau-bench's pass^k)."""
        tasks = dict.fromkeys(trial.task for trial in self.trials)
        passed = [all(trial.is_passed for trial in self.select(configuration, task)) for task in tasks]
        return sum(passed) / len(passed)

    def compare(self, first: str, second: str) -> tuple[int, int, float]:
        """Count trials that only the second passed and only the first, and how likely that is by chance."""
        outcome = {(t.task, t.repetition): t.is_passed for t in self.select(first)}
        pairs = [(outcome[t.task, t.repetition], t.is_passed) for t in self.select(second)]
        gained, lost = sum(not a and b for a, b in pairs), sum(a and not b for a, b in pairs)
        return gained, lost, sign_test(gained, lost)

    def sentences(self) -> list[str]:
        """Return the rates of each configuration and of its tasks, and how each differs from the first."""
        if not self.trials:
            return []
        first, *others = self.configurations
        lines = []
        for name in (first, *others):
            lines.append(
                f"{name}: {self.rate(name)}; in every repetition: {self.reliable_share(name):.0%} of the tasks"
            )
            tasks = dict.fromkeys(trial.task for trial in self.trials)
            lines += [f"  {task}: {self.rate(name, task)}" for task in tasks]
        for name in others:
            gained, lost, chance = self.compare(first, name)
            lines.append(f"{name} against {first}: {gained} trials gained, {lost} lost (p = {chance:.2g})")
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "suite": self.suite,
            "configurations": {
                name: {**asdict(self.rate(name)), "share": self.rate(name).share, "reliable": self.reliable_share(name)}
                for name in self.configurations
            },
            "trials": [{**asdict(trial), "is_passed": trial.is_passed} for trial in self.trials],
        }

    def to_junit(self) -> str:
        """Write one `testsuite` per configuration and one `testcase` per trial."""
        root = ElementTree.Element("testsuites", name=self.suite)
        for name in self.configurations:
            trials = self.select(name)
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=f"{self.suite}.{name}",
                tests=str(len(trials)),
                failures=str(sum(not trial.is_passed for trial in trials)),
                time=f"{sum(trial.seconds for trial in trials):.3f}",
            )
            for trial in trials:
                case = ElementTree.SubElement(
                    suite,
                    "testcase",
                    classname=f"{self.suite}.{name}",
                    name=f"{trial.task} [{trial.repetition}]",
                    time=f"{trial.seconds:.3f}",
                )
                if trial.problems:
                    failure = ElementTree.SubElement(case, "failure", message=trial.problems[0])
                    failure.text = "\n".join([*trial.problems, "", trial.answer])
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


class Evaluator:
    """Runs suites with the tools of one library. Suites with an environment have their own tools."""

    def __init__(
        self,
        suite: Suite,
        library: UnifiedToolLibrary,
        choose: Callable[[str | None], Model],
        *,
        folder: Path | None = None,
        instructions: str = "",
        concurrency: int = 4,
        on_trial: Callable[[TrialResult], None] | None = None,
    ) -> None:
        """`choose` returns the model of a name, or the project's. `folder` is where the suite's file is."""
        self._suite, self._library, self._choose = suite, library, choose
        self._environment = None if suite.environment is None else load_environment(suite.environment, folder)
        self._instructions, self._slots = instructions, asyncio.Semaphore(concurrency)
        self._on_trial = on_trial
        self._prefix = f"eval-{uuid4().hex[:8]}"

    async def run(self, *, repetitions: int | None = None, only: Sequence[str] = ()) -> EvaluationResult:
        """Run all trials; `only` selects configurations."""
        chosen = {n: c for n, c in self._suite.configurations.items() if not only or n in only}
        number = repetitions or self._suite.repetitions
        trials = await asyncio.gather(
            *(
                self._run_trial(name, configuration, task, repetition)
                for name, configuration in chosen.items()
                for task in self._suite.tasks
                for repetition in range(1, number + 1)
            )
        )
        return EvaluationResult(suite=self._suite.name, trials=list(trials))

    async def _run_trial(
        self, name: str, configuration: SuiteConfiguration, task: SuiteTask, repetition: int
    ) -> TrialResult:
        async with self._slots:
            model = WaitingModel(self._choose(configuration.model))
            environment = None if self._environment is None else self._environment()
            if environment is not None:
                environment.reset(dict(task.metadata))
            async with self._open_library(environment) as library:
                backend = LocalBackend(
                    library,
                    model,
                    instructions=configuration.instructions or self._instructions,
                    tools=None if configuration.tools is None else list(configuration.tools),
                    limits=RunLimits(turns=configuration.turns or 20),
                    memory=configuration.memory,
                    name="evaluation",
                )
                run_id = f"{self._prefix}-{name}-{task.id}-{repetition}"
                batch_task = BatchTask(id=task.id, task=task.task, tools=task.tools, metadata=task.metadata)
                trajectory = await backend.run_task(batch_task, run_id, may_exist=False)
                judge = model if self._suite.judge is None else self._choose(self._suite.judge)
                run = CheckedRun(trajectory=trajectory, caller=library, judge=judge, environment=environment)
                problems = [problem for check in task.checks if (problem := await find_problem(check, run)) is not None]
            if trajectory["state"] != "finished":
                problems.insert(0, f"no answer: {trajectory['state']}, {trajectory['reason']}")
            trial = TrialResult(
                configuration=name,
                task=task.id,
                repetition=repetition,
                problems=problems,
                answer=trajectory["answer"],
                seconds=trajectory["seconds"],
                cost=trajectory["cost"],
                calls=(trajectory.get("totals") or {}).get("calls", 0),
                trajectory=trajectory,
            )
            if self._on_trial is not None:
                self._on_trial(trial)
            return trial

    @asynccontextmanager
    async def _open_library(self, environment: Environment | None) -> AsyncIterator[UnifiedToolLibrary]:
        if environment is None:
            yield self._library
            return
        async with UnifiedToolLibrary(ToolEngineConfig(tools_directory=NO_FOLDER, builtin_tools=False)) as library:
            names = [n for n in dir(environment) if not n.startswith("_") and n not in ("reset", "check_state")]
            library.register(*(method for name in names if callable(method := getattr(environment, name))))
            yield library
