"""The checks of a task: of its answer, its calls, the state of a tool, or by the judgement of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

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
