# mypy: ignore-errors
"""smolagents: its tools are sync, and run in the caller's thread or a pool of threads."""

from itertools import count

from smolagents import ToolCallingAgent, tool
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole, Model
from smolagents.monitoring import LogLevel, TokenUsage

from benchmarks.minds import DONE, Script
from benchmarks.samples import ARGUMENTS, MOST_AT_ONCE, add_sync, nap_sync, read_count_sync, step_sync
from benchmarks.ways import Loop, Registry, Way

_ids = count(1)


async def call(stack):
    agent = _agent([tool(add_sync)])

    async def execute():
        return agent.execute_tool_call("add_sync", dict(ARGUMENTS))

    return {"ToolCallingAgent.execute_tool_call, sync tool": Way(do=execute)}


async def limit(stack, calls):
    nap = tool(nap_sync)

    async def one_turn():
        return _agent([nap], _OneTurn(calls), max_tool_threads=MOST_AT_ONCE).run("go")

    return {f"one turn of a run, max_tool_threads={MOST_AT_ONCE}": Way(do=one_turn)}


def registry():
    async def first_call(tools, name, arguments):
        return _agent(tools).execute_tool_call(name, arguments)

    return Registry(register=lambda fns: [tool(function) for function in fns], first_call=first_call, sync=True)


async def loop(stack, further):
    script = Script("step_sync")
    agent = _agent([tool(function) for function in (step_sync, *further)], _Minded(script))

    async def run(turns):
        script.begin(turns)
        return agent.run("go", max_steps=turns + 1)

    return {"ToolCallingAgent.run, sync tool": Loop(run=run)}


def stubborn(mind):
    async def run():
        return _agent([tool(read_count_sync)], _Minded(mind)).run("go")

    return {"ToolCallingAgent.run": run}


def _agent(tools, model=None, **options):
    return ToolCallingAgent(tools, model or _OneTurn(0), verbosity_level=LogLevel.OFF, **options)


class _OneTurn(Model):
    """A model that asks for many calls at once and then is content."""

    def __init__(self, calls):
        super().__init__(model_id="one turn")
        self._calls = calls

    def generate(self, messages, **options):
        wanted = [("nap_sync", ARGUMENTS)] * self._calls or [("final_answer", {"answer": "done"})]
        self._calls = 0
        return _asking(wanted)


class _Minded(Model):
    """A model that does what a mind wishes."""

    def __init__(self, mind):
        super().__init__(model_id="minded")
        self._mind = mind

    def generate(self, messages, **options):
        return _asking([self._mind.wish() or ("final_answer", {"answer": DONE})])


def _asking(wanted):
    return ChatMessage(
        role=MessageRole.ASSISTANT,
        content="",
        token_usage=TokenUsage(1, 1),
        tool_calls=[
            ChatMessageToolCall(ChatMessageToolCallFunction(dict(arguments), name), f"c{next(_ids)}", "function")
            for name, arguments in wanted
        ],
    )
