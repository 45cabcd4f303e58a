"""Answers are kept where they would be the same again, and nowhere else."""

import json
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule import Secret, ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.core.permission import Decision, Principal, Verdict
from ferrule.orchestrator import Orchestrator
from ferrule.orchestrator.small_talk import depends_on_time, normalize_question, refers_to_history
from ferrule.policy.policy import Policy, Rule
from ferrule.testing import ScriptedModel
from tests.orchestrator.opening import open_orchestrator


@tool(read_only=True, cacheable=True)
async def population(city: str) -> int:
    """How many people live in a city."""
    return 42


@tool(read_only=True)
async def temperature(city: str) -> int:
    """How warm it is in a city."""
    return 20


CALL = {"name": "population", "arguments": {"city": "Oslo"}}
QUESTION = "How many people live in Oslo?"


async def test_the_same_question_is_answered_from_the_cache():
    model = ScriptedModel([CALL, "42 people."])
    async with open_orchestrator([population], model, strategy="loop") as orchestrator:
        first = await orchestrator.process_task(QUESTION)
        again = await orchestrator.process_task("  How many people\n live in   Oslo? ")
        assert again.answer == "42 people." and again.cached and not first.cached and len(model.requests) == 2
        assert again.steps == first.steps and again.run_id == first.run_id and again.trace_id != first.trace_id
        assert again.usage.requests == 0 and set(again.timings) == {"cache", "total"}


async def test_a_kept_answer_survives_a_restart(tmp_path):
    url, answers = f"sqlite:///{tmp_path}/calls.db", []
    for script in ([CALL, "42 people."], []):
        async with UnifiedToolLibrary(store=url) as library:
            library.register(population)
            async with Orchestrator(library, ScriptedModel(script), strategy="loop") as orchestrator:
                answers.append(await orchestrator.process_task(QUESTION))
    assert answers[1].cached and answers[1].answer == "42 people."
    assert answers[1].steps == answers[0].steps and answers[1].verification == answers[0].verification


async def test_a_kept_answer_ends_with_its_time_and_no_later_than_its_results():
    @tool(read_only=True, cacheable=60.0)
    async def stock(shop: str) -> int:
        """How many are left."""
        return 1

    now = [1000.0]
    script = [
        "words",
        "words again",
        {"name": "stock", "arguments": {"shop": "a"}},
        "one",
        {"name": "stock", "arguments": {"shop": "a"}},
        "one again",
    ]
    async with UnifiedToolLibrary() as library:
        library.register(stock)
        orchestrator = Orchestrator(library, ScriptedModel(script), cache_ttl=300, clock=lambda: now[0])
        assert not (await orchestrator.process_task("Words?", strategy="direct")).cached
        now[0] += 299
        assert (await orchestrator.process_task("Words?", strategy="direct")).cached
        now[0] += 2
        assert (await orchestrator.process_task("Words?", strategy="direct")).answer == "words again"
        await orchestrator.process_task("How many are left?", strategy="loop")
        now[0] += 61
        assert (await orchestrator.process_task("How many are left?", strategy="loop")).answer == "one again"


async def test_an_answer_with_a_tool_that_is_not_cacheable_is_not_kept():
    call = {"name": "temperature", "arguments": {"city": "Oslo"}}
    model = ScriptedModel([call, "20 degrees.", call, "20 degrees."])
    async with open_orchestrator([temperature], model, strategy="loop") as orchestrator:
        for _ in range(2):
            assert not (await orchestrator.process_task("How warm is Oslo?")).cached
        assert len(model.requests) == 4


async def test_other_tools_or_another_model_mean_another_answer():
    async with UnifiedToolLibrary() as library:
        async with Orchestrator(library, ScriptedModel(["a", "b"]), strategy="direct") as orchestrator:
            await orchestrator.process_task("Who?")
            library.register(population)
            assert (await orchestrator.process_task("Who?")).answer == "b"
        async with Orchestrator(library, ScriptedModel(["c"], name="other"), strategy="direct") as orchestrator:
            assert (await orchestrator.process_task("Who?")).answer == "c"


async def test_another_context_or_strategy_means_another_answer():
    model = ScriptedModel(["a", "b", "c"])
    async with open_orchestrator([], model) as orchestrator:
        await orchestrator.process_task("Who?", strategy="direct")
        with_context = await orchestrator.process_task("Who?", {"city": "Oslo"}, strategy="direct")
        in_a_loop = await orchestrator.process_task("Who?", strategy="loop")
        assert [with_context.answer, in_a_loop.answer] == ["b", "c"]
        assert "city: Oslo" in str(model.requests[1].messages[0]["content"])


async def test_what_stopped_or_failed_is_not_kept():
    call = {"name": "population", "arguments": {}}
    model = ScriptedModel(["", "now", call, "I could not find out.", call, "Still not."])
    async with open_orchestrator([population], model) as orchestrator:
        assert (await orchestrator.process_task("Who?", strategy="direct")).state == "stopped"
        assert (await orchestrator.process_task("Who?", strategy="direct")).answer == "now"
        await orchestrator.process_task(QUESTION, strategy="loop")
        assert (await orchestrator.process_task(QUESTION, strategy="loop")).answer == "Still not."


async def test_without_a_time_nothing_is_kept():
    model = ScriptedModel(["a", "b"])
    async with open_orchestrator([], model, cache_ttl=None) as orchestrator:
        await orchestrator.process_task("Who?", strategy="direct")
        assert (await orchestrator.process_task("Who?", strategy="direct")).answer == "b"


@pytest.mark.parametrize(
    "question",
    [
        "What time is it in Oslo?",
        "What is the latest version?",
        "weather today",
        "现在几点",
        "今天的天气",
        "刚刚说的是什么城市",
    ]
    + [
        "What did I ask about cats before?",
        "and in Berlin?",
        "double it",
        "那北京呢",
        "roll the dice",
        "population this year",
    ],
)
async def test_questions_about_the_moment_or_the_past_are_always_answered_anew(question):
    model = ScriptedModel(["a", "b"])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        answers = [(await orchestrator.process_task(question)).answer for _ in range(2)]
        assert answers == ["a", "b"]


def test_a_question_whose_it_is_its_own_stands_alone():
    for question in ("Compute 3*4 and then double it", "6 times 7", "先算3*4，然后把它乘以2", "Why is the sky blue?"):
        assert not refers_to_history(question) and not depends_on_time(question)


@given(st.text("abcABC 0123456789.,?！", min_size=1, max_size=30), st.sampled_from(["  ", "\n", "\t ", "\u3000"]))
def test_only_white_space_makes_no_difference(question, space):
    assert normalize_question(f" {question} ".replace(" ", space)) == normalize_question(question)
    assert normalize_question(question) == " ".join(question.split())


async def test_an_answer_that_two_tools_were_asked_for_is_not_kept():
    @tool(read_only=True, cacheable=True, tags=["weather"])
    async def almanac(city: str) -> str:
        """The weather of a city."""
        return ""

    @tool(read_only=True, cacheable=True, tags=["weather"])
    async def station(city: str) -> str:
        """The weather of a city."""
        return "sunny"

    steps = '{"steps": [{"id": 1, "description": "d", "tool_type": "almanac", "parameters": {"city": "Oslo"}}]}'
    model = ScriptedModel([steps, steps])
    async with open_orchestrator([almanac, station], model, strategy="plan") as orchestrator:
        first = await orchestrator.process_task("Weather of Oslo?")
        assert first.answer == "sunny" and not (await orchestrator.process_task("Weather of Oslo?")).cached


@tool(read_only=True, cacheable=True)
async def salary(name: str) -> str:
    """The salary of a person."""
    return f"{name} earns 5000"


SALARY = {"name": "salary", "arguments": {"name": "Ann"}}


def principal(tenant: str) -> Principal:
    return Principal(kind="agent", tenant=tenant)


@pytest.mark.parametrize(
    "other",
    [
        {"policy": Policy(rules=[Rule(verdict="deny", tool="salary")])},
        {"principal": principal("b")},
        {"tools": ["population"]},
    ],
    ids=["policy", "tenant", "tools"],
)
async def test_an_answer_is_not_used_under_another_policy_tenant_or_configuration(tmp_path, other):
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path}/calls.db") as library:
        library.register(salary, population)
        async with Orchestrator(library, ScriptedModel([SALARY, "5000."]), principal=principal("a")) as orchestrator:
            assert (await orchestrator.process_task("What does Ann earn?")).answer == "5000."
            assert (await orchestrator.process_task("What does Ann earn?")).cached
        model = ScriptedModel([SALARY, "I cannot tell."])
        async with Orchestrator(library, model, **{"principal": principal("a"), **other}) as orchestrator:
            refused = await orchestrator.process_task("What does Ann earn?")
            assert not refused.cached and refused.answer == "I cannot tell."


class ChangingPolicy:
    """A policy of the user's own."""

    def __init__(self) -> None:
        self.verdict: Verdict = "allow"

    def decide(self, *call: Any) -> Decision:
        return Decision(verdict=self.verdict, reason="Not now.")


@pytest.mark.parametrize("is_of_library", [True, False])
async def test_an_answer_is_not_used_again_where_a_policy_may_have_changed_its_mind(is_of_library):
    policy = ChangingPolicy()
    model = ScriptedModel([SALARY, "5000.", SALARY, "I cannot tell."])
    async with UnifiedToolLibrary(policy=policy if is_of_library else None) as library:
        library.register(salary)
        async with Orchestrator(library, model, policy=None if is_of_library else policy) as orchestrator:
            assert (await orchestrator.process_task("What does Ann earn?")).answer == "5000."
            policy.verdict = "deny"
            assert (await orchestrator.process_task("What does Ann earn?")).answer == "I cannot tell."


async def test_an_answer_for_which_a_person_allowed_a_call_is_not_used_again():
    class Person:
        requests = 0

        def approve(self, request: object) -> bool:
            self.requests += 1
            return self.requests == 1

    model, person = ScriptedModel([SALARY, "5000.", SALARY, "I cannot tell."]), Person()
    async with UnifiedToolLibrary(policy=Policy(rules=[Rule(verdict="ask", tool="salary")])) as library:
        library.register(salary)
        async with Orchestrator(library, model, person=person) as orchestrator:
            assert (await orchestrator.process_task("What does Ann earn?")).answer == "5000."
            assert (await orchestrator.process_task("What does Ann earn?")).answer == "I cannot tell."
    assert person.requests == 2


async def test_the_names_of_facts_cannot_stand_for_the_configuration():
    model = ScriptedModel(["a", "b"])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        await orchestrator.process_task("Who?", {"tools": ["x"], "instructions": "y"})
        assert (await orchestrator.process_task("Who?", {"tools": ["z"]})).answer == "b"


async def test_questions_that_differ_in_case_or_punctuation_have_their_own_answers():
    questions = ["How much is 1 Mb", "How much is 1 MB", "How much is 1 MB!", "Read Report.txt", "Read report.txt"]
    model = ScriptedModel([str(n) for n in range(len(questions))])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        answers = [(await orchestrator.process_task(question)).answer for question in questions]
        assert answers == ["0", "1", "2", "3", "4"]


async def test_what_a_tool_read_from_one_conversation_does_not_reach_another():
    @tool(read_only=True, cacheable=True)
    async def profile(context: ToolExecutionContext) -> str:
        """What is known about the user."""
        return (await context.call_tool("get_conversation_history", {})).text

    call = {"name": "profile", "arguments": {}}
    model = ScriptedModel(["Noted.", call, "You are Ann.", call, "I do not know."])
    async with open_orchestrator([profile], model, strategy="loop") as orchestrator:
        await orchestrator.process_task("I am Ann", conversation_id="ann")
        await orchestrator.process_task("Who am I?", conversation_id="ann")
        other = await orchestrator.process_task("Who am I?", conversation_id="bob")
        assert not other.cached and not other.shared and other.answer == "I do not know."
        assert "Ann" not in str(model.requests[-1].messages)


async def test_secrets_of_a_plan_are_in_no_cached_or_shared_result(tmp_path):
    @tool(read_only=True, cacheable=True)
    async def enter(pin: Annotated[str, Secret()], door: str) -> str:
        """Open a door."""
        return f"{door} is open, {pin} fits"

    step = {"id": 1, "description": "enter", "tool_type": "enter", "parameters": {"pin": "PIN-8642", "door": "A"}}
    steps = [step, {"id": 2, "description": "say", "tool_type": "none", "dependencies": [1]}]
    script = [json.dumps({"steps": steps}), "It is open.", "The door is open."]
    async with UnifiedToolLibrary(store=f"sqlite:///{tmp_path}/calls.db") as library:
        library.register(enter)
        async with Orchestrator(library, ScriptedModel(script), strategy="plan") as orchestrator:
            first = await orchestrator.process_task("Enter", conversation_id="a")
            other = await orchestrator.process_task("Enter", conversation_id="b")
        assert other.cached and other.answer == first.answer == "The door is open."
        assert "PIN-8642" not in str(other.to_dict()) and "PIN-8642" not in str(first.plan)
        await library.engine.store.flush()
    assert b"PIN-8642" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
