"""Plans: what models write, what is mended, and references between steps."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ferrule.errors import InvalidArguments
from ferrule.workflow.plan import Plan, plan_of, single_step
from ferrule.workflow.references import resolve, steps_referred_to, with_other_ids

TOOLS = ["search_web", "calculate", "get_time"]
RESULTS = {"1": {"items": [{"name": "tea", "price": 3}], "total": 1}, "2": "28 stars", "3": [1, 2, 3]}


def plan(*steps: dict[str, object]) -> Plan:
    found = plan_of({"steps": list(steps)}, TOOLS)
    assert found is not None
    return found


def step(number: object, tool: str = "none", needs: list[object] | None = None, **more: object) -> dict[str, object]:
    return {"id": number, "description": f"do {number}", "tool_type": tool, "dependencies": needs or [], **more}


def test_a_plan_of_the_documents_is_read_as_it_is():
    said = {
        "steps": [
            {"id": 1, "description": "find", "tool_type": "search_web", "dependencies": [], "complexity": 3},
            {"id": 2, "description": "say", "tool_type": "none", "dependencies": [1], "complexity": 1},
        ],
        "parallel_groups": [[1], [2]],
        "total_estimated_time": 60,
    }
    found = plan_of(said, TOOLS)
    assert found is not None and found.problems == () and found.parallel_groups == ((1,), (2,))
    assert found.total_estimated_time == 60 and found[2].dependencies == (1,) and found[1].complexity == 3
    assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("said", [None, 7, {}, {"steps": []}, {"steps": "none"}, [], {"steps": [7, None]}])
def test_where_there_is_no_step_there_is_no_plan(said):
    assert plan_of(said, TOOLS) is None


def test_duplicate_ids_get_new_ones():
    found = plan(step(1), step(1), step(2))
    assert [s.id for s in found.steps] == [1, 3, 2] and "Two steps have the id 1" in found.problems[0]


def test_unknown_tools_are_replaced_by_the_nearest_or_by_thinking():
    found = plan(step(1, "serch_web"), step(2, "teleport"), step(3, "null"))
    assert [s.tool_type for s in found.steps] == ["search_web", "none", "none"]
    assert "'search_web' is used instead" in found.problems[0] and len(found.problems) == 2


def test_dependencies_on_nothing_and_on_oneself_are_taken_out():
    found = plan(step(1, needs=[1, 9]), step("2", needs=["1"]))
    assert found[1].dependencies == () and found[2].dependencies == (1,) and len(found.problems) == 2


def test_a_circle_is_opened():
    found = plan(step(1, needs=[3]), step(2, needs=[1]), step(3, needs=[2]))
    assert [s.id for s in found.steps] == [1, 2, 3] and "go in a circle" in found.problems[0]


def test_a_reference_is_a_dependency():
    found = plan(step(1), step(2, "calculate", parameters={"expression": "${1.total} * 2"}))
    assert found[2].dependencies == (1,) and found.parallel_groups == ((1,), (2,))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 7), max_size=4)), min_size=1, max_size=8))
def test_every_plan_can_be_done_in_its_order(said):
    found = plan_of({"steps": [step(number, needs=list(needs)) for number, needs in said]}, TOOLS)
    assert found is not None and len(found.steps) == len(said)
    done: set[str] = set()
    for one in found.steps:
        assert {str(needed) for needed in one.dependencies} <= done
        done.add(str(one.id))
    assert len(done) == len(said) and [i for group in found.parallel_groups for i in group]


def test_real_plans_are_read_with_their_dependencies():
    path = Path(__file__).parents[3] / "shared/data/plans/seal_plans.jsonl"
    if not path.is_file():
        pytest.skip("needs shared/data beside the project")
    for line in path.read_text().splitlines():
        said = json.loads(line)
        steps = [{**one, "id": one["index"], "description": one["tool"]} for one in said["steps"]]
        found = plan_of({"steps": steps}, {one["tool"] for one in steps})
        assert found is not None and found.problems == ()
        assert {s.id: list(s.dependencies) for s in found.steps} == {s["index"]: s["depends_on"] for s in said["steps"]}


def test_a_question_that_needs_no_plan_is_one_step():
    assert single_step("hello").to_dict()["steps"][0]["tool_type"] == "none"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("${1}", RESULTS["1"]),
        ("${1.total}", 1),
        ("${1.items[0].price}", 3),
        ("{{1.items.0.name}}", "tea"),
        ("${steps.1.result.total}", 1),
        ("${step_1.output.total}", 1),
        ("${steps[1].items[0]['name']}", "tea"),
        ("${3[-1]}", 3),
        ("we sell ${1.items[0].name} for ${1.items[0].price}, ${2}", "we sell tea for 3, 28 stars"),
        ("${HOME}/file and {{ name }}", "${HOME}/file and {{ name }}"),
        ("plain", "plain"),
        (["${2}", {"n": "${1.total}"}], ["28 stars", {"n": 1}]),
        (7, 7),
    ],
)
def test_references_are_replaced_and_keep_their_type(written, meant):
    assert resolve(written, RESULTS, step=4) == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("${9}", "there is no result of such a step. Results there are: 1, 2, 3."),
        ("${1.totl}", "there is no totl in it: there is only items, total. Did you mean 'total'?"),
        ("${3[5]}", "there is no [5] in it: there is a list of 3."),
        ("${2.name}", "there is no name in it: there is a str."),
        ("text with ${steps.8.x}", "Results there are"),
    ],
)
def test_a_reference_that_cannot_be_resolved_says_why(written, said):
    with pytest.raises(InvalidArguments) as error:
        resolve({"deep": [written]}, RESULTS, step=4)
    assert said in str(error.value) and "Step 4" in str(error.value)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="${}[]. 123abstep_\"'-", max_size=40))
def test_no_text_breaks_the_reader(text):
    try:
        resolve(text, RESULTS)
    except InvalidArguments:
        assert steps_referred_to(text) or "$" in text or "{" in text


@pytest.mark.parametrize("said", ["1e999", "-1e999", "NaN", "1" + "0" * 400, "-5", "true", '"soon"', "null"])
def test_a_time_that_is_none_is_no_time(said):
    found = plan_of(json.loads(f'{{"steps": ["do it"], "total_estimated_time": {said}}}'), TOOLS)
    assert found is not None and found.total_estimated_time in (0.0, 1.0)
    assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found


def test_references_can_be_turned_to_other_steps():
    said = {"a": "${1}", "b": ["see {{ 1.items[0].name }} and ${steps.2.x}"], "c": "${HOME} ${11}", "d": 1}
    changed = with_other_ids(said, {"1": 4, "2": "x"})
    assert changed == {"a": "${4}", "b": ["see {{ 4.items[0].name }} and ${steps.x.x}"], "c": "${HOME} ${11}", "d": 1}


def test_a_plan_that_follows_others_has_ids_of_its_own_and_repeats_nothing():
    after = plan(step(1, "calculate", parameters={"n": 1}), step(2, "get_time")).steps
    said = [step(1, "calculate", parameters={"n": 1}), step(2, "search_web", [1], parameters={"q": "${1} ${2}"})]
    found = plan_of({"steps": said}, TOOLS, after=after, once=after[:1])
    assert found is not None and [s.id for s in found.steps] == [1, 2, 3]
    assert found[3].parameters == {"q": "${1} ${2}"} and found[3].dependencies == (1, 2)
