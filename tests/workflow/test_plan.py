"""Plans: what models write, what is mended, and references between steps."""

import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.agent.answer import Plan
from ferrule.core.names import encode_model_name
from ferrule.errors import InvalidArguments
from ferrule.workflow.plan import (
    find_referenced_steps,
    parse_plan,
    renumber_references,
    resolve_references,
    single_step_plan,
)

TOOLS = ["search_web", "calculate", "get_time"]
RESULTS = {"1": {"items": [{"name": "tea", "price": 3}], "total": 1}, "2": "28 stars", "3": [1, 2, 3]}


def plan(*steps: dict[str, object]) -> Plan:
    found = parse_plan({"steps": list(steps)}, TOOLS)
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
    found = parse_plan(said, TOOLS)
    assert found is not None and found.problems == () and found.parallel_groups == ((1,), (2,))
    assert found.total_estimated_time == 60 and found[2].dependencies == (1,) and found[1].complexity == 3
    assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("said", [None, 7, {}, {"steps": []}, {"steps": "none"}, [], {"steps": [7, None]}])
def test_where_there_is_no_step_there_is_no_plan(said):
    assert parse_plan(said, TOOLS) is None


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
    assert [s.id for s in found.steps] == [1, 2, 3] and "form a cycle" in found.problems[0]


def test_a_reference_is_a_dependency():
    found = plan(step(1), step(2, "calculate", parameters={"expression": "${1.total} * 2"}))
    assert found[2].dependencies == (1,) and found.parallel_groups == ((1,), (2,))


@given(st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(0, 7), max_size=4)), min_size=1, max_size=8))
def test_every_plan_can_be_done_in_its_order(said):
    found = parse_plan({"steps": [step(number, needs=list(needs)) for number, needs in said]}, TOOLS)
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
        found = parse_plan({"steps": steps}, {one["tool"] for one in steps})
        assert found is not None and found.problems == ()
        assert {s.id: list(s.dependencies) for s in found.steps} == {s["index"]: s["depends_on"] for s in said["steps"]}


def test_a_question_that_needs_no_plan_is_one_step():
    assert single_step_plan("hello").to_dict()["steps"][0]["tool_type"] == "none"


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
    assert resolve_references(written, RESULTS, step=4) == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("${9}", "that step has no result. Available results: 1, 2, 3."),
        ("${1.totl}", "the result has no totl: it is an object with items, total. Did you mean 'total'?"),
        ("${3[5]}", "the result has no [5]: it is a list of 3."),
        ("${2.name}", "the result has no name: it is a str."),
        ("text with ${steps.8.x}", "Available results"),
    ],
)
def test_a_reference_that_cannot_be_resolved_says_why(written, said):
    with pytest.raises(InvalidArguments) as error:
        resolve_references({"deep": [written]}, RESULTS, step=4)
    assert said in str(error.value) and "Step 4" in str(error.value)


@given(st.text(alphabet="${}[]. 123abstep_\"'-", max_size=40))
def test_no_text_breaks_the_reader(text):
    try:
        resolve_references(text, RESULTS)
    except InvalidArguments:
        assert find_referenced_steps(text) or "$" in text or "{" in text


@pytest.mark.parametrize("said", ["1e999", "-1e999", "NaN", "1" + "0" * 400, "-5", "true", '"soon"', "null"])
def test_a_time_that_is_none_is_no_time(said):
    found = parse_plan(json.loads(f'{{"steps": ["do it"], "total_estimated_time": {said}}}'), TOOLS)
    assert found is not None and found.total_estimated_time in (0.0, 1.0)
    assert Plan.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("${2.1}", {"1": "one"}),
        ("${2.1.1}", "one"),
        ("${2.2}", "two"),
        ("${fetch.page.title} of ${steps.fetch.page.result.title}", "Tea of Tea"),
        ("${step_4.total}", 7),
        ("${fetch.title}", "Coffee"),
        ("${fetch.0.y}", 5),
        ("${fetch[0].y}", 5),
        ("${fetch['0'][\"y\"]}", 5),
        ("${fetchx.title}", "${fetchx.title}"),
    ],
)
def test_a_step_is_found_by_its_own_id(written, meant):
    results = {
        "2": {"2": "two"},
        "2.1": {"1": "one"},
        "fetch": {"title": "Coffee", "0": {"y": 5}},
        "fetch.page": {"title": "Tea"},
        "step_4": {"total": 7},
    }
    assert resolve_references(written, results) == meant


def test_references_to_steps_with_dots_in_their_ids_are_dependencies():
    found = plan(
        step("fetch.page", "get_time"), step("2.1", "calculate", parameters={"n": "${fetch.page.n}", "m": "${fetch.n}"})
    )
    assert found["2.1"].dependencies == ("fetch.page",)


def test_tools_with_dots_in_their_ids_are_found_by_their_own_id():
    names = ["math.factorial", "math.factorials", "math.factor", "geo.city.find", "weather__today"]
    said = [step(n, name) for n, name in enumerate(["math.factorial", "geo.city.find", "weather.today"], 1)]
    found = parse_plan({"steps": said}, [encode_model_name(name) for name in names])
    assert found is not None and found.problems == ()
    assert [s.tool_type for s in found.steps] == ["math-2e-factorial", "geo-2e-city-2e-find", "weather__today"]


def test_references_can_be_turned_to_other_steps():
    said = {"a": "${1}", "b": ["see {{ 1.items[0].name }} and ${steps.2.x}"], "c": "${HOME} ${11}", "d": 1}
    changed = renumber_references(said, {"1": 4, "2": "x"})
    assert changed == {"a": "${4}", "b": ["see {{ 4.items[0].name }} and ${steps.x.x}"], "c": "${HOME} ${11}", "d": 1}


def test_a_plan_that_follows_others_has_ids_of_its_own_and_repeats_nothing():
    after = plan(step(1, "calculate", parameters={"n": 1}), step(2, "get_time")).steps
    said = [step(1, "calculate", parameters={"n": 1}), step(2, "search_web", [1], parameters={"q": "${1} ${2}"})]
    found = parse_plan({"steps": said}, TOOLS, after=after, once=after[:1])
    assert found is not None and [s.id for s in found.steps] == [1, 2, 3]
    assert found[3].parameters == {"q": "${1} ${2}"} and found[3].dependencies == (1, 2)


@pytest.mark.parametrize(
    "written",
    ["${1}" * 1_000, " ${1.text}" * 2_000, ["${1}"] * 1_000, {"a": [{str(n): "${1}"} for n in range(1_000)]}],
    ids=["text", "fields", "list", "objects"],
)
def test_a_short_plan_cannot_make_huge_arguments(written):
    results = {"1": {"text": "x" * 99_000}}
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArguments, match="Step 4 was not executed: .* more than 1000000 characters"):
            resolve_references(written, results, step=4)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert len(resolve_references("${1.text}" * 10, results)) == 990_000


@pytest.mark.parametrize(
    ("text", "results", "resolved"),
    [
        ("${1} * 3", {"1": "38.45 EUR"}, "38.45 * 3"),
        ("3 * ${1} + 2 * ${2}", {"1": "$38.45", "2": "$12.5"}, "3 * 38.45 + 2 * 12.5"),
        ("(${1} - 32) / 1.8", {"1": "50 °F"}, "(50 - 32) / 1.8"),
        ("${1} * ${2}", {"1": "3.5欧元", "2": 4}, "3.5 * 4"),
        ("${1} + ${2}", {"1": "3 km", "2": "12.5 ft"}, "3 km + 12.5 ft"),
        ("${1} * 80", {"1": "15 %"}, "15 % * 80"),
        ("${1} * 2", {"1": "3 million"}, "3 million * 2"),
        ("${1} left", {"1": "5 km"}, "5 km left"),
    ],
)
def test_a_calculation_gets_the_numbers_of_quantities_of_one_unit(text: str, results: dict[str, object], resolved: str):
    assert resolve_references(text, results) == resolved
