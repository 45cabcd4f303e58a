"""An approval is for the code that the person was asked about, and survives a restart if the code is the same."""

import asyncio
import functools
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ferrule import (
    FunctionToolSpec,
    Policy,
    Principal,
    Rule,
    ToolExecutionContext,
    ToolExecutionResult,
    UnifiedToolLibrary,
    tool,
)
from ferrule.core.spec import ToolCapability
from ferrule.kinds.function.tools import read_python_file, tool_of
from ferrule.kinds.yaml.tool_file import read_tool_file
from tests.support.engines import library_with


async def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def with_closure(value: str) -> Any:
    @tool(name="pay")
    async def function(amount: int) -> str:
        return value

    return function


def with_helper_in_closure(value: str) -> Any:
    helper = (lambda: "paid") if value == "paid" else (lambda: "stolen" * 1)

    @tool(name="pay")
    async def function(amount: int) -> str:
        return helper()

    return function


def with_default(value: str) -> Any:
    async def pay(amount: int, *, _result=value) -> str:
        return str(_result)

    return pay


def with_wrapper(value: str) -> Any:
    if value == "paid":
        return pay

    @functools.wraps(pay)
    async def wrapper(amount: int) -> str:
        return "stolen"

    return wrapper


def with_wrapped_function(value: str) -> Any:
    function = with_closure(value)

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await wrapper.__wrapped__(*args, **kwargs)

    return wrapper


def with_partial(value: str) -> Any:
    async def pay(result: str, amount: int) -> str:
        return result

    return functools.partial(pay, value)


def with_callable_object(value: str) -> Any:
    class pay:
        async def __call__(self, amount: int) -> str:
            return value

    return pay()


def with_function_in_attribute(value: str) -> Any:
    class pay:
        def __init__(self, function: Callable[[], str]) -> None:
            self.function = function

        async def __call__(self, amount: int) -> str:
            return self.function()

    return pay(lambda: value)


def with_inherited_method(value: str) -> Any:
    class Base:
        async def transfer(self, amount: int) -> str:
            return "paid"

    class OtherBase:
        async def transfer(self, amount: int) -> str:
            return "stolen"

    base: Any = Base if value == "paid" else OtherBase
    base.__qualname__ = base.__name__ = "Base"

    @tool(name="pay")
    class Bank(base):  # type: ignore[misc]
        pass

    return Bank


def with_initializer(value: str) -> Any:
    @tool(name="pay")
    class Bank:
        def __init__(self) -> None:
            self.value = value

        async def transfer(self, amount: int) -> str:
            return self.value

    return Bank


def with_langchain_function(value: str) -> Any:
    tools = pytest.importorskip("langchain_core.tools")
    coroutine = tool_of(with_closure(value)).target.function("pay")
    return tools.StructuredTool.from_function(coroutine=coroutine, name="pay", description="Pay.")


def with_langchain_class(value: str) -> Any:
    tools = pytest.importorskip("langchain_core.tools")

    class Pay(tools.BaseTool):  # type: ignore[misc, name-defined]
        name: str = "pay"
        description: str = "Pay."

        def _run(self, amount: int) -> str:
            return value

        async def _arun(self, amount: int) -> str:
            return value

    return Pay()


def with_openai_agents(value: str) -> Any:
    agents = pytest.importorskip("agents")

    async def invoke(context: Any, arguments: str) -> str:
        return value

    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}, "additionalProperties": False}
    return agents.FunctionTool(
        name="pay", description="Pay.", params_json_schema=schema, on_invoke_tool=invoke, strict_json_schema=False
    )


def with_pydantic_ai(value: str) -> Any:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    return pydantic_ai.Tool(tool_of(with_closure(value)).target.function("pay"), name="pay")


LARGE_LIBRARIES = (with_langchain_function, with_langchain_class, with_openai_agents, with_pydantic_ai)
MAKERS = [
    pytest.param(make, marks=[pytest.mark.integration] if make in LARGE_LIBRARIES else [], id=name)
    for name, make in list(globals().items())
    if name.startswith("with_")
]


async def call(library: UnifiedToolLibrary, approval_id: str | None = None) -> ToolExecutionResult:
    return await library.execute_tool("pay", None, {"amount": 1}, context=ToolExecutionContext(approval_id=approval_id))


async def approve(library: UnifiedToolLibrary) -> str:
    result = await call(library)
    assert result.error_type == "approval_required", result
    approval_id: str = result.metadata["approval_id"]
    await library.engine.approvals.record_decision(approval_id, True)
    return approval_id


@pytest.mark.parametrize("make", MAKERS)
async def test_an_approval_is_not_for_other_code(make: Callable[[str], Any]):
    async with library_with(make("paid"), policy=Policy(default="ask")) as library:
        approval_id = await approve(library)
        library.engine.unregister("pay")
        library.register(make("stolen"))
        replaced = await call(library, approval_id)
        assert replaced.error_type == "approval_required" and "earlier version" in str(replaced.error)
        library.engine.unregister("pay")
        library.register(make("paid"))
        assert (await call(library, approval_id)).text == "paid"


async def test_an_approval_survives_a_change_of_state():
    count, calls = 0, list[int]()

    @tool(name="pay")
    async def function(amount: int) -> str:
        nonlocal count
        count += 1
        calls.append(amount)
        return f"paid {count}"

    class Bank:
        def __init__(self) -> None:
            self.balance = 10

        async def transfer(self, amount: int) -> str:
            self.balance -= amount
            return f"paid {self.balance}"

    for thing in (function, tool(name="pay")(Bank)):
        async with library_with(thing, policy=Policy(default="ask")) as library:
            first, second = await approve(library), await approve(library)
            assert (await call(library, first)).is_success
            assert (await call(library, second)).is_success


# Modules on disk, and other processes

BANK = """
from ferrule import tool

def helper(name: str) -> str:
    return "paid" if name in {"ann", "bob", "eve", "zoe", "max"} else "unknown"

class Bank:
    async def pay(self, name: str) -> str:
        return helper(name)

async def pay(name: str) -> str:
    return helper(name)

def pay_in_worker(name: str) -> str:
    return helper(name)

@tool
async def pay_of_file(name: str) -> str:
    return helper(name)
"""
YAML = "name: yaml\nparameters: {name: {type: string}}\nentry: {type: custom, handler: 'bank:pay'}\n"


def make_tools(folder: Path) -> list[Any]:
    bank = importlib.import_module("bank")
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    actions = [ToolCapability(name="pay", description="Pay.", parameters=schema)]
    specs = [
        FunctionToolSpec(tool_id=f"spec{name}", module_path="bank", class_name=name, capabilities=actions)
        for name in ("Bank", "")
    ]
    functions = [tool(name="function")(bank.pay), tool(name="worker")(bank.pay_in_worker), tool(name="cls")(bank.Bank)]
    return [*specs, *functions, *read_python_file(folder / "bank.py").tools, *read_tool_file(folder / "pay.yaml").tools]


async def ask_or_call(folder: Path, approval_ids: dict[str, list[str]]) -> dict[str, Any]:
    """What a process does: ask for two approvals of each tool or, with approvals, use one of each."""
    policy = Policy(rules=[Rule(verdict="ask", principal="agent")])
    results: dict[str, Any] = {}
    async with UnifiedToolLibrary(store=str(folder / "store.db"), policy=policy) as library:
        for spec in library.register(*make_tools(folder)):

            async def call_tool(approval_id: str | None, name: str = spec.tool_id) -> ToolExecutionResult:
                context = ToolExecutionContext(principal=Principal(kind="agent", name="a"), approval_id=approval_id)
                return await library.execute_tool(name, None, {"name": "ann"}, context=context)

            if approval_ids:
                result = await call_tool(approval_ids[spec.tool_id].pop())
                results[spec.tool_id] = result.text if result.is_success else str(result.error_type)
                continue
            results[spec.tool_id] = []
            for _ in range(2):
                approval_id = (await call_tool(None)).metadata["approval_id"]
                await library.engine.approvals.record_decision(approval_id, True)
                results[spec.tool_id].append(approval_id)
                await library.execute_tool(spec.tool_id, None, {"name": "bob"})  # a user's call creates the objects
    return results


def run_process(folder: Path, hash_seed: int, approval_ids: dict[str, list[str]]) -> dict[str, Any]:
    path = os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "tests.policy.test_approved_code", str(folder)],
        input=json.dumps(approval_ids),
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    results: dict[str, Any] = json.loads(process.stdout)
    return results


@pytest.mark.integration
def test_an_approval_survives_a_restart_unless_the_code_has_changed(tmp_path: Path):
    (tmp_path / "bank.py").write_text(BANK)
    (tmp_path / "pay.yaml").write_text(YAML)
    approval_ids = run_process(tmp_path, 1, {})
    assert len(approval_ids) == 7
    assert set(run_process(tmp_path, 2, approval_ids).values()) == {"paid"}
    (tmp_path / "bank.py").write_text(BANK.replace('"paid"', '"stolen"'))
    unused = {name: ids[:1] for name, ids in approval_ids.items()}
    assert set(run_process(tmp_path, 1, unused).values()) == {"approval_required"}


async def test_a_module_that_cannot_be_imported_is_not_asked_about():
    actions = [ToolCapability(name="pay", description="Pay.", parameters={})]
    spec = FunctionToolSpec(tool_id="pay", module_path="no_such_bank", class_name="Bank", capabilities=actions)
    async with library_with(spec, policy=Policy(default="ask")) as library:
        result = await call(library)
        assert (result.error_type, "no_such_bank" in str(result.error)) == ("executor_not_found", True)
        assert await library.engine.approvals.list_requests() == []


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask_or_call(Path(sys.argv[1]), json.load(sys.stdin)))))
