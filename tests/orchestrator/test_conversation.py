"""What was said before, as it was when a question arrived."""

import asyncio
import json
import time

import pytest

from ferrule import ToolExecutionContext, UnifiedToolLibrary, tool
from ferrule.errors import ModelRefused
from ferrule.memory import conversation as memory_module
from ferrule.orchestrator import ConversationMemory, Orchestrator
from ferrule.testing import ScriptedModel
from tests.orchestrator.opening import open_orchestrator

HISTORY = {"name": "get_conversation_history", "arguments": {"query": "questions"}}


async def test_a_snapshot_does_not_change_with_what_comes_later():
    async with UnifiedToolLibrary() as library:
        memory = ConversationMemory(library.engine.store)
        first = memory.add_question("c", "one?")
        snapshot = memory.create_snapshot("c")
        memory.add_answer("c", first, "1", state="finished")
        memory.add_question("c", "two?")
        assert [(turn.question, turn.answer, turn.state) for turn in await snapshot.turns()] == [
            ("one?", "", "running")
        ]
        now = await memory.create_snapshot("c").turns()
        assert [(turn.question, turn.answer) for turn in now] == [("one?", "1"), ("two?", "")]


async def test_conversations_are_kept_apart_and_survive_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path}/calls.db"
    for question in ("first?", "second?"):
        async with UnifiedToolLibrary(store=url) as library:
            orchestrator = Orchestrator(library, ScriptedModel(["yes"]), strategy="direct")
            await orchestrator.process_task(question, conversation_id="anna")
    async with UnifiedToolLibrary(store=url) as library, Orchestrator(library, ScriptedModel([])) as orchestrator:
        anna = await orchestrator.process_task("what have I asked?", conversation_id="anna")
        bob = await orchestrator.process_task("what have I asked?", conversation_id="bob")
    assert anna.answer == "So far you have asked:\n1. first?\n2. second?" and "not asked anything" in bob.answer


async def test_a_clock_that_was_set_back_does_not_reorder_a_conversation(tmp_path, monkeypatch):
    url, questions = f"sqlite:///{tmp_path}/calls.db", ["first?", "second?", "third?"]
    for question in questions:
        async with UnifiedToolLibrary(store=url) as library:
            await Orchestrator(library, ScriptedModel(["yes"]), strategy="direct").process_task(question)
        earlier = time.time_ns() - 3_600 * 10**9
        monkeypatch.setattr(time, "time_ns", lambda earlier=earlier: earlier)
    async with UnifiedToolLibrary(store=url) as library:
        memory = ConversationMemory(library.engine.store)
        await memory.synchronize("default")
        turns = await memory.create_snapshot().turns()
        assert [(turn.question, turn.answer) for turn in turns] == [(question, "yes") for question in questions]


async def test_questions_asked_at_once_see_the_state_they_arrived_in():
    gate, has_begun = asyncio.Event(), asyncio.Event()

    @tool(read_only=True)
    async def wait() -> str:
        """Wait until the gate opens."""
        has_begun.set()
        await gate.wait()
        return "open"

    async with UnifiedToolLibrary() as library:
        library.register(wait)
        slow = Orchestrator(library, ScriptedModel([{"name": "wait"}, HISTORY, "done"]), strategy="loop")
        quick = Orchestrator(library, ScriptedModel([HISTORY, "done"]), strategy="loop")
        await Orchestrator(library, ScriptedModel(["yes"]), strategy="direct").process_task("zero?")
        running = asyncio.create_task(slow.process_task("What did I ask just now, one?"))
        await has_begun.wait()
        second = await quick.process_task("What did I ask just now, two?")
        gate.set()
        first = await running
        assert first.steps[1].result == '["zero?"]'
        assert second.steps[0].result == '["zero?","What did I ask just now, one?"]'


async def test_a_question_about_before_is_told_what_was_said(tmp_path):
    model = ScriptedModel(["Paris.", "As I said: Paris."])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        await orchestrator.process_task("The capital of France?")
        await orchestrator.process_task("What did you say just now?!? Say it in a whole sentence")
        told = model.requests[1].messages
        assert [m["content"] for m in told[1:3]] == ["The capital of France?", "Paris."]
        assert len(model.requests[0].messages) == 2


async def test_messages_that_are_passed_are_not_repeated_from_the_store():
    model = ScriptedModel(["Paris.", "As I said: Paris."])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        await orchestrator.process_task("The capital of France?")
        passed = [{"role": "user", "content": "The capital of France?"}, {"role": "assistant", "content": "Paris."}]
        await orchestrator.process_task("What did you say just now? In a whole sentence", history=passed)
        assert [m["content"] for m in model.requests[1].messages[1:-1]] == ["The capital of France?", "Paris."]


async def test_a_plan_gets_the_history_as_words():
    plan = '{"steps": [{"id": 1, "description": "think", "tool_type": "none"}]}'
    model = ScriptedModel(["Paris.", plan, "Paris again."])
    async with open_orchestrator([], model, workflow="simple") as orchestrator:
        await orchestrator.process_task("The capital of France?", strategy="direct")
        done = await orchestrator.process_task("那之前的答案是什么城市，请说明", strategy="plan")
        prompt = str(model.requests[1].messages[0]["content"])
        assert (
            "之前的对话：\nuser: The capital of France?\nassistant: Paris." in prompt and done.answer == "Paris again."
        )


async def test_a_question_that_stands_alone_is_told_nothing_of_before():
    model = ScriptedModel(["Paris.", "Rome."])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        await orchestrator.process_task("The capital of France?")
        await orchestrator.process_task("The capital of Italy?")
        assert "France" not in str(model.requests[1].messages)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("last_question", "two?"),
        ("questions", ["one?", "two?"]),
        ("all", [{"question": "one?", "answer": "1"}, {"question": "two?", "answer": "2"}]),
    ],
)
async def test_the_tool_tells_what_is_asked_for(query, expected):
    async with UnifiedToolLibrary() as library:
        async with Orchestrator(library, ScriptedModel(["1", "2"]), strategy="direct") as orchestrator:
            await orchestrator.process_task("hello", conversation_id="c")
            await orchestrator.process_task("one?", conversation_id="c")
            await orchestrator.process_task("two?", conversation_id="c")
        asker = ToolExecutionContext(conversation_id="c")
        done = await library.execute_tool("get_conversation_history", None, {"query": query}, context=asker)
        fewer = await library.execute_tool(
            "get_conversation_history", None, {"query": "questions", "limit": 1}, context=asker
        )
        assert done.output["result"] == expected and fewer.output["result"] == ["two?"]


async def test_a_tool_of_the_users_own_is_not_doubled():
    @tool(read_only=True)
    async def get_conversation_history() -> str:
        """My own."""
        return "mine"

    async with UnifiedToolLibrary() as library:
        library.register(get_conversation_history)
        async with Orchestrator(library, ScriptedModel(["yes"]), strategy="direct") as orchestrator:
            await orchestrator.process_task("one?")
        assert len(library.engine.registry.candidates("get_conversation_history")) == 1


async def test_failures_are_remembered_too():
    model = ScriptedModel([ModelRefused("no such model"), RuntimeError("broken")])
    async with open_orchestrator([], model, strategy="direct") as orchestrator:
        stopped = await orchestrator.process_task("one?")
        with pytest.raises(RuntimeError):
            await orchestrator.process_task("two?")
        turns = await orchestrator.memory.create_snapshot().turns()
        assert stopped.state == "stopped" and "no such model" in stopped.answer and stopped.errors == ("no such model",)
        assert [(turn.state, turn.answer) for turn in turns] == [("stopped", stopped.answer), ("failed", "broken")]


async def test_of_a_very_long_conversation_the_oldest_turns_are_forgotten(monkeypatch):
    monkeypatch.setattr(memory_module, "MAX_TURNS", 5)
    async with UnifiedToolLibrary() as library:
        memory = ConversationMemory(library.engine.store)
        for number in range(20):
            memory.add_answer("c", memory.add_question("c", f"{number}?"), "yes", state="finished")
        await memory.create_snapshot("c").turns()
        assert [turn.question for turn in await memory.create_snapshot("c").turns()] == [
            "15?",
            "16?",
            "17?",
            "18?",
            "19?",
        ]


async def test_small_talk_does_not_crowd_out_what_was_asked(monkeypatch):
    monkeypatch.setattr(memory_module, "MAX_TURNS", 5)
    async with UnifiedToolLibrary() as library:
        memory = ConversationMemory(library.engine.store)
        memory.add_answer("c", memory.add_question("c", "What is tea?"), "A drink.", state="finished")
        for _ in range(40):
            await memory.create_snapshot("c").turns()
            memory.add_answer(
                "c", memory.add_question("c", "what did I ask?", is_question=False), "tea", state="finished"
            )
        turns = await memory.create_snapshot("c").turns()
        assert [(turn.question, turn.answer) for turn in turns if turn.is_question] == [("What is tea?", "A drink.")]
        assert len(turns) < 20


@pytest.mark.parametrize("named", ["question", "answer"])
async def test_a_plan_may_write_to_whom_the_user_has_named_earlier_in_the_conversation(named):
    sent: list[str] = []

    @tool
    async def read_page(url: str) -> str:
        """Return the text of a page."""
        return "News."

    @tool
    async def send_email(to: str, subject: str) -> str:
        """Send an email."""
        sent.append(to)
        return "sent"

    steps = [
        {"id": 1, "tool_type": "read_page", "parameters": {"url": "https://news.example/"}},
        {
            "id": 2,
            "tool_type": "send_email",
            "parameters": {"to": "ann@corp.example", "subject": "News"},
            "dependencies": [1],
        },
    ]
    plan = json.dumps({"steps": [{"description": "d", **step} for step in steps]})
    texts = {"question": "My colleague is ann@corp.example", "answer": "Do I have colleagues?"}
    first_reply = "Noted." if named == "question" else "Ann, ann@corp.example."
    async with UnifiedToolLibrary() as library:
        library.register(read_page, send_email)
        model = ScriptedModel([first_reply, plan, "Sent."])
        orchestrator = Orchestrator(library, model, workflow="simple", cache_ttl=None)
        await orchestrator.process_task(texts[named], strategy="direct")
        answer = await orchestrator.process_task("And write to her about https://news.example/", strategy="plan")
    assert sent == (["ann@corp.example"] if named == "question" else []), [r.reason for r in answer.approvals]
    assert (answer.state.value == "waiting") == (named == "answer")
