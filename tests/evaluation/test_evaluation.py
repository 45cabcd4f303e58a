"""Suites: the shipped ones pass, every kind of check can fail, and rates come with honest intervals."""

import json
from xml.etree import ElementTree

import pytest

from ferrule import Agent, UnifiedToolLibrary
from ferrule.batch.tasks import read_tasks_from_runs
from ferrule.engine import ToolEngineConfig
from ferrule.errors import SetupError
from ferrule.evaluation import EvaluationResult, Evaluator, Suite, read_suite, wilson_interval
from ferrule.evaluation.suite import CheckedRun, find_problem, list_suites
from ferrule.models import choose_model
from ferrule.testing import ScriptedModel


def choose(name):
    return choose_model(name or "offline", {})


@pytest.mark.parametrize("name", list_suites())
async def test_a_shipped_suite_passes_without_a_key(name):
    suite, folder = read_suite(name)
    async with UnifiedToolLibrary() as library:
        result = await Evaluator(suite, library, choose, folder=folder).run()
    assert [trial.problems for trial in result.trials if not trial.is_passed] == []
    assert len(result.trials) == len(suite.tasks) * suite.repetitions


def test_a_result_without_trials_has_nothing_to_say():
    assert EvaluationResult(suite="empty", trials=[]).sentences() == []


class Till:
    """An environment whose check is that of the test."""

    def __init__(self):
        self._total = 0

    def reset(self, metadata):
        self._total = metadata["start"]

    def check_state(self, metadata):
        return None if self._total == metadata["end"] else f"the total is {self._total}"

    async def pay(self, amount: int) -> int:
        """Pay an amount."""
        self._total += amount
        return self._total


async def test_configurations_are_compared_and_written_for_ci(monkeypatch):
    suite = Suite.model_validate(
        {
            "name": "till",
            "repetitions": 3,
            "environment": f"{__name__}:Till",
            "configurations": {"good": {"model": "good"}, "bad": {"model": "bad"}},
            "tasks": [
                {
                    "id": "pay",
                    "task": "pay 5",
                    "metadata": {"start": 1, "end": 6},
                    "checks": [
                        {"state": "environment"},
                        {"state": {"tool": "pay", "arguments": {"amount": 0}, "equals": 6}},
                    ],
                }
            ],
        }
    )
    amounts = {"good": 5, "bad": 4}

    def choose_scripted(name):
        return ScriptedModel([{"name": "pay", "arguments": {"amount": amounts[name]}}, "done"])

    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        result = await Evaluator(suite, library, choose_scripted).run()
    assert (result.rate("good").passed, result.rate("bad").passed) == (3, 0)
    gained, lost, chance = result.compare("good", "bad")
    assert (gained, lost) == (0, 3) and chance == pytest.approx(0.25)
    assert (result.reliable_share("good"), result.reliable_share("bad")) == (1.0, 0.0)
    assert result.trials[-1].problems == ["the total is 5", "pay has the state 5, not 6"]
    document = ElementTree.fromstring(result.to_junit().split("?>", 1)[1])
    assert [(s.get("tests"), s.get("failures")) for s in document] == [("3", "0"), ("3", "3")]
    assert json.loads(json.dumps(result.to_dict()))["configurations"]["good"]["share"] == 1.0


@pytest.mark.parametrize(
    ("check", "answer", "problem"),
    [
        ({"exact": "42"}, " 42 ", None),
        ({"exact": "42"}, "43", "the answer is '43', not '42'"),
        ({"contains": ["Milk", "牛奶"]}, "milk 牛奶", None),
        ({"contains": "milk"}, "tea", "does not contain 'milk'"),
        ({"regex": r"\b42\b"}, "it is 42.", None),
        ({"regex": r"\b42\b"}, "142", "does not match"),
        ({"json": {"path": "$.items[1].price", "equals": 3}}, '```json\n{"items": [{}, {"price": 3}]}```', None),
        ({"json": {"path": "$.items[1].price", "equals": 3}}, '{"items": []}', "nothing at $.items[1].price"),
        ({"json": {"path": "$.a", "equals": 3}}, "no JSON", "the check json failed"),
        ({"python": "int(answer) > 40"}, "42", None),
        ({"python": "int(answer) > 40"}, "4", "is not true"),
        ({"calls": "add"}, "", "add was not called with success"),
        ({"judge": "is polite"}, "please", None),
        ({"judge": "is rude"}, "please", "judges that it is not met: no, it is polite"),
    ],
)
async def test_a_check_finds_what_is_wrong(check, answer, problem):
    judge = ScriptedModel(["Yes, it is." if check.get("judge") == "is polite" else "no, it is polite"])
    trajectory = {"task": "t", "answer": answer, "calls": [], "metadata": {}}
    async with UnifiedToolLibrary(ToolEngineConfig(builtin_tools=False)) as library:
        result = await find_problem(check, CheckedRun(trajectory=trajectory, caller=library, judge=judge))
    assert result is None if problem is None else problem in str(result)


def test_intervals_are_those_of_wilson():
    assert [*wilson_interval(8, 10)] == pytest.approx([0.4902, 0.9433], abs=1e-4)
    assert wilson_interval(0, 20)[0] == 0.0 and wilson_interval(20, 20)[1] == pytest.approx(1.0)
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_a_wrong_suite_is_explained(tmp_path):
    path = tmp_path / "suite.yaml"
    for text, message in (
        ("name: x\ntasks: []", "tasks"),
        ("name: x\ntasks: [{id: a, task: t, checks: [{contain: x}]}]", "a check has one of the keys exact, contains"),
        ("name: x\ntasks: [{id: a, task: t}, {id: a, task: u}]", "two tasks have the id 'a'"),
        ("name: [", "not valid YAML"),
    ):
        path.write_text(text)
        with pytest.raises(SetupError, match=message):
            read_suite(str(path))
    with pytest.raises(SetupError, match="or one of: arithmetic, inventory"):
        read_suite("nothing")


async def test_recorded_runs_become_tasks_and_equal_questions_one():
    model = ScriptedModel([{"name": "calculator", "arguments": {"expression": "1+1"}}, "2", "2", "没有", KeyError("x")])
    async with UnifiedToolLibrary() as library:
        agent = Agent(library, model)
        for question in ("What is 1+1?", "what is  1+1", "你好"):
            await agent.run(question)
        with pytest.raises(KeyError):
            await agent.run("fails")
        tasks = [task async for task in read_tasks_from_runs(library.engine.store)]
        everything = [t async for t in read_tasks_from_runs(library.engine.store, states=frozenset({"interrupted"}))]
    assert [task.task for task in tasks] == ["你好", "what is  1+1"]
    assert tasks[0].metadata["answer"] == "没有" and tasks[0].tools is None
    assert [task.task for task in everything] == ["fails"]
