"""Functions, classes, objects and named classes as tools."""

import dataclasses
import functools
import math
import pickle
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jsonschema_rs
import pytest
from pydantic import BaseModel

from ferrule.core.call import ToolExecutionContext
from ferrule.core.schema import Secret
from ferrule.core.spec import Effects, FunctionToolSpec, Limits, Tool, ToolCapability, ToolCategory, ToolSpec, ToolType
from ferrule.errors import ExecutionFailed, ExecutorNotFound, SpecError
from ferrule.kinds.function.tools import make_tool_per_action, tool, tool_of


def checked(thing: Any, **options: Any) -> Tool:
    """The tool, once all its schemas have been found valid."""
    created = tool_of(thing, **options)
    for capability in created.spec.capabilities:
        jsonschema_rs.meta.validate(capability.schema)
    return created


@tool
def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    Args:
        a: the first
    """
    return a + b


class Counter:
    """Counts things."""

    def __init__(self) -> None:
        self.total = 0
        self.ended: list[str] = []

    def count(self, by: int = 1) -> int:
        """Count on."""
        self.total += by
        return self.total

    async def reset(self, context: ToolExecutionContext) -> None:
        """Start again."""

    @staticmethod
    def unit() -> str:
        return "pieces"

    @classmethod
    def kind(cls) -> str:
        return cls.__name__

    @property
    def is_empty(self) -> bool:
        raise AssertionError("a property must not be read")

    def _secretly(self) -> None: ...

    async def cleanup(self) -> None:
        self.ended.append("cleanup")


class Door:
    @tool(name="open", timeout=2, tags=["in"], category="file", examples=[{"key": "k"}])
    def unlock(self, key: str) -> bool:
        """Open it."""
        return key == "k"

    @tool(destructive=True)
    def burn(self) -> None: ...

    def not_a_tool(self) -> None: ...


@dataclass
class Needy:
    url: str

    def fetch(self) -> str:
        return self.url


def test_a_decorated_function_stays_what_it_was():
    assert add(1) == 2
    assert add.__name__ == "add"
    assert pickle.loads(pickle.dumps(add)) is add
    assert vars(add)["__ferrule_tool__"] == {}


def test_a_function_is_a_tool_with_one_action_of_its_name():
    created = checked(add)
    assert (created.id, created.name, created.handler, created.source) == ("add", "add", "function", "tools")
    assert created.spec.description == "Add two numbers."
    assert created.spec.tool_type is ToolType.FUNCTION
    assert created.spec.capabilities == [
        ToolCapability(
            name="add",
            description="Add two numbers.",
            parameters={
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first"},
                    "b": {"type": "integer", "default": 1},
                },
                "required": ["a"],
            },
            output={"type": "integer"},
        )
    ]
    assert created.target.function("add") is add


def test_the_origin_names_module_function_file_and_line():
    line = add.__code__.co_firstlineno
    assert checked(add).origin == f"tests.kinds.function.test_tools:add (test_tools.py:{line})"


def test_options_say_how_a_tool_may_be_run():
    @tool(
        name="files.read",
        description="Read.",
        tags=["a", "b", "a"],
        category=ToolCategory.FILE,
        version="2.0",
        timeout=5,
        bucket="disk",
        isolation="thread",
        max_output=100,
        read_only=True,
        idempotent=True,
        cacheable=60,
        examples=[{"path": "x"}],
        metadata={"owner": "me"},
        enabled=False,
    )
    def read(path: str) -> str: ...  # type: ignore[empty-body]

    spec = checked(read).spec
    assert (spec.tool_id, spec.description, spec.tags, spec.version) == ("files.read", "Read.", ["a", "b"], "2.0")
    assert spec.limits == Limits(timeout=5, bucket="disk", isolation="thread", max_output=100)
    assert spec.effects == Effects(read_only=True, idempotent=True, cacheable=True, cache_ttl=60)
    assert (spec.metadata, spec.enabled, spec.category) == ({"owner": "me"}, False, ToolCategory.FILE)
    assert (spec.capabilities[0].examples, spec.capabilities[0].category) == ([{"path": "x"}], "file")


def test_options_given_later_win():
    @tool(timeout=5, tags=["x"])
    def fn(): ...

    spec = checked(fn, timeout=1, name="other").spec
    assert (spec.tool_id, spec.limits.timeout, spec.tags) == ("other", 1, ["x"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timout": 5}, "tool '.*fn': there is no option 'timout'. Did you mean 'timeout'"),
        ({"timeout": 0}, "tool '.*fn': timeout must be more than 0 seconds"),
        ({"timeout": "x"}, "tool '.*fn': timeout must be more than 0 seconds, not 'x'"),
        ({"max_output": "1 MB"}, "tool '.*fn': max_output must be at least 1 byte, not '1 MB'"),
        ({"cacheable": "yes"}, "tool '.*fn': cacheable must be True, False or more than 0 seconds, not 'yes'"),
        ({"tags": "math"}, r"tool '.*fn': tags must be a list: write tags=\['math'\]"),
        ({"isolation": "docker"}, "isolation must be one of auto, process, thread, inline, not 'docker'"),
        ({"cacheable": -1}, "cacheable must be True, False or more than 0 seconds, not -1"),
        ({"max_output": 0}, "max_output must be at least 1 byte"),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_written(options, message):
    def fn(): ...

    with pytest.raises(SpecError, match=message):
        tool(**options)(fn)


def test_a_name_without_its_keyword_is_explained():
    with pytest.raises(SpecError, match=r"write @tool\(name='search'\)"):
        tool("search")


@pytest.mark.parametrize("thing", [math.sqrt, Counter().count])
def test_what_cannot_carry_a_note_is_registered_with_options_instead(thing):
    with pytest.raises(SpecError, match="register it with its options"):
        tool(timeout=1)(thing)
    assert checked(thing, timeout=1).spec.limits.timeout == 1


def test_an_object_is_a_tool_whose_actions_are_its_public_methods():
    counter = Counter()
    created = checked(counter)
    assert (created.id, created.spec.description) == ("Counter", "Counts things.")
    assert [c.name for c in created.spec.capabilities] == ["count", "reset", "unit", "kind"]
    assert created.spec.capabilities[1].schema == {"type": "object", "properties": {}}
    assert created.target.function("count")(by=3) == 3 == counter.total
    assert created.target.function("kind")() == "Counter"
    assert created.target.function("count") is created.target.function("count")


def test_methods_of_python_and_of_libraries_are_no_actions():
    class Row(BaseModel):
        value: int = 0

        def double(self) -> int:
            return 2 * self.value

    class Runner(threading.Thread):
        def go(self) -> None: ...

    class Late(Counter):
        def count(self, by: int = 2) -> int:
            """Count late."""
            return by

    assert [c.name for c in checked(Row(value=2)).spec.capabilities] == ["double"]
    assert [c.name for c in checked(Runner()).spec.capabilities] == ["go"]
    late = checked(Late()).spec.capabilities
    assert [c.name for c in late] == ["count", "reset", "unit", "kind"]
    assert late[0].description == "Count late."


def test_decorated_methods_are_the_only_actions():
    created = checked(Door())
    assert [c.name for c in created.spec.capabilities] == ["open", "burn"]
    assert created.target.function("open")("k") is True
    opening, burning = created.spec.capabilities
    assert (opening.limits, opening.effects, opening.category) == (Limits(timeout=2), None, "file")
    assert (burning.limits, burning.effects) == (None, Effects(destructive=True))
    assert (opening.examples, created.spec.tags) == ([{"key": "k"}], ["in"])


def test_what_a_class_says_holds_for_methods_that_say_nothing_else():
    @tool(name="store", timeout=9, bucket="disk", read_only=True, description="Stores.", category="file")
    class Store:
        @tool(timeout=1)
        def get(self) -> None: ...

        @tool(destructive=True)
        def drop(self) -> None: ...

    spec = checked(Store).spec
    assert (spec.tool_id, spec.description, spec.limits) == ("store", "Stores.", Limits(timeout=9, bucket="disk"))
    get, drop = spec.capabilities
    assert (get.limits, get.effects) == (Limits(timeout=1, bucket="disk"), None)
    assert (drop.limits, drop.effects) == (None, Effects(read_only=True, destructive=True))
    assert get.category == "file"


def test_a_disabled_method_is_no_action():
    class Half:
        @tool
        def on(self) -> None: ...

        @tool(enabled=False)
        def off(self) -> None: ...

    assert [c.name for c in checked(Half()).spec.capabilities] == ["on"]


def test_what_only_a_whole_tool_has_cannot_be_said_of_an_action():
    class Versioned:
        @tool(version="2.0")
        def run(self) -> None: ...

    with pytest.raises(SpecError, match="action 'run': version can only be set for a whole tool"):
        tool_of(Versioned())
    assert make_tool_per_action(Versioned())[0].spec.version == "2.0"


def test_a_subclass_does_not_inherit_the_note_of_its_base():
    @tool(name="base")
    class Base:
        def run(self) -> None: ...

    class Sub(Base): ...

    assert (checked(Base).id, checked(Sub).id) == ("base", "Sub")


def test_static_and_class_methods_can_be_decorated_on_either_side():
    class Box:
        @tool
        @staticmethod
        def a(x: int) -> int:
            return x

        @staticmethod
        @tool
        def b(x: int) -> int:
            return x

        @tool
        @classmethod
        def c(cls, x: int) -> int:
            return x

    created = checked(Box())
    assert [list(c.schema["properties"]) for c in created.spec.capabilities] == [["x"], ["x"], ["x"]]
    assert [created.target.function(name)(1) for name in "abc"] == [1, 1, 1]


def test_a_class_is_made_on_first_use_and_only_once():
    made_here: list[int] = []

    class Slow:
        def __init__(self) -> None:
            made_here.append(1)

        def run(self) -> int:
            return len(made_here)

        def walk(self) -> None: ...

    created = checked(Slow)
    assert made_here == []
    assert created.target.function("run")() == 1
    assert created.target.function("walk")() is None
    assert made_here == [1]


def test_a_class_that_fails_to_be_made_fails_the_call():
    class Broken:
        def __init__(self) -> None:
            raise OSError("no disk")

        def run(self) -> None: ...

    with pytest.raises(ExecutionFailed, match="tool 'Broken': creating a Broken failed with OSError: no disk"):
        checked(Broken).target.function("run")


def test_a_class_that_needs_arguments_is_refused():
    with pytest.raises(SpecError, match=r"'Needy' cannot be created without arguments .*'url'.*Needy\(…\), instead"):
        tool_of(Needy)
    assert checked(Needy("u")).spec.description == ""


@pytest.mark.parametrize("thing", [5, "text", None, math, object(), [add]])
def test_what_is_no_tool_is_refused(thing):
    with pytest.raises(SpecError, match="cannot become a tool.*Give a function"):
        tool_of(thing)


def test_a_method_without_its_object_is_refused():
    with pytest.raises(SpecError, match=r"'Counter.count' is a method without its object.*Counter\(\).count"):
        tool_of(Counter.count)
    assert checked(Counter().count).id == "count"


def test_a_lambda_needs_a_name():
    with pytest.raises(SpecError, match=r"a lambda has no name: pass name=….*test_tools.py:\d+"):
        tool_of(lambda x: x)
    assert checked(lambda x: x, name="same").id == "same"


def test_partials_and_callable_objects_are_functions():
    class Scale:
        """Scales."""

        def __call__(self, n: int) -> int:
            return n * 2

        def unrelated(self) -> None: ...

    fixed = checked(functools.partial(add, b=5))
    assert (fixed.id, list(fixed.spec.capabilities[0].schema["properties"])) == ("add", ["a"])
    assert fixed.target.function("add")(a=1) == 6
    scale = checked(Scale())
    assert (scale.id, scale.spec.description, len(scale.spec.capabilities)) == ("Scale", "Scales.", 1)
    assert scale.target.function("Scale")(n=2) == 4


def test_an_object_with_decorated_methods_is_not_called_itself():
    class Both:
        def __call__(self) -> None: ...

        @tool
        def run(self) -> None: ...

    assert [c.name for c in checked(Both()).spec.capabilities] == ["run"]


def test_each_method_can_be_a_tool_of_its_own():
    counter = Counter()
    tools = make_tool_per_action(counter)
    assert [created.id for created in tools] == ["count", "reset", "unit", "kind"]
    assert [c.name for created in tools for c in created.spec.capabilities] == ["count", "reset", "unit", "kind"]
    assert tools[0].target.function("count")(2) == 2 == counter.total
    assert "Counter.count (test_tools.py:" in tools[0].origin
    assert [created.spec.limits.timeout for created in make_tool_per_action(Door())] == [2, None]


async def test_an_object_is_ended_once():
    counter = Counter()
    target = checked(counter).target
    await target.aclose()
    await target.aclose()
    assert counter.ended == ["cleanup"]


async def test_a_class_that_was_never_made_is_not_ended():
    ended: list[str] = []

    class Connection:
        def run(self) -> None: ...

        def close(self) -> None:
            ended.append("close")

    unused, used = checked(Connection).target, checked(Connection).target
    used.function("run")
    await unused.aclose()
    assert ended == []
    await used.aclose()
    assert ended == ["close"]


async def test_an_object_of_several_tools_ends_with_the_last_of_them():
    counter = Counter()
    first, *others = make_tool_per_action(counter)
    await first.target.aclose()
    await first.target.aclose()
    assert counter.ended == []
    for created in others:
        await created.target.aclose()
    assert counter.ended == ["cleanup"]


def test_a_secret_parameter_is_known_to_its_capability():
    def login(user: str, password: Annotated[str, Secret]) -> None: ...

    assert checked(login).spec.capabilities[0].secret_names == {"password"}


NAVIGATOR = """
class BrowserNavigator:
    '''Walks the web.'''
    created = 0
    def __init__(self, home="about:blank"):
        BrowserNavigator.created += 1
        self.home = home
    def navigate(self, url: str) -> str:
        '''导航到指定网页'''
        return self.home + " -> " + url
    def click(self, selector: str = "a"):
        return selector
def helper(x: int): return x + 1
def close(): raise AssertionError("a module is not ours to close")
"""


@pytest.fixture
def navigator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a new module with a class and a function."""
    name = f"navigator_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(NAVIGATOR, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.parametrize("options", [{"timeout": None}, {"timeout": 5}, None])
def test_decorated_methods_are_the_actions_of_a_class_that_also_describes_itself(options: dict[str, Any] | None):
    class Shop:
        name = "shop"
        description = "A shop."

        def execute(self) -> str:
            return ""

        def sell(self, count: int) -> int:
            """Sell things."""
            return count

        sell = tool(sell) if options is None else tool(**options)(sell)

    for thing in (Shop, Shop()):
        assert [c.name for c in tool_of(thing).spec.capabilities] == ["sell"]
        assert [each.id for each in make_tool_per_action(thing)] == ["sell"]


def test_a_bare_decorator_of_execute_changes_nothing():
    class Shop:
        name = "shop"
        description = "A shop."

        @tool
        def execute(self) -> str:
            return ""

    assert tool_of(Shop).id == "shop"


def test_a_spec_names_a_class_that_is_imported_on_first_use(navigator):
    # The sample of the design, with a module that exists.
    capabilities = [
        ToolCapability(
            name="navigate",
            description="导航到指定网页",
            parameters={"url": {"type": "string", "description": "目标网页URL", "required": True}},
            examples=[{"url": "https://www.example.com"}],
            category="web",
        )
    ]
    spec = FunctionToolSpec(
        tool_id="browser_navigator",
        name="网页导航器",
        description="提供网页导航和元素交互功能",
        tool_type=ToolType.FUNCTION,
        capabilities=capabilities,
        tags=["web", "automation", "browser"],
        module_path=navigator,
        class_name="BrowserNavigator",
        init_params={"home": "here"},
    )
    created = checked(spec)
    assert created.spec is spec
    assert created.origin == f"{navigator}:BrowserNavigator"
    assert created.target.function("navigate")("there") == "here -> there"
    assert created.target.function("click")() == "a"
    assert type(created.target.function("click").__self__).created == 1


def test_a_spec_without_capabilities_takes_them_from_the_class(navigator):
    spec = checked(FunctionToolSpec(tool_id="nav", module_path=navigator, class_name="BrowserNavigator")).spec
    assert [(c.name, c.description) for c in spec.capabilities] == [("navigate", "导航到指定网页"), ("click", "")]
    assert spec.description == "Walks the web."
    assert spec.capabilities[0].schema["required"] == ["url"]


async def test_a_spec_without_a_class_means_the_functions_of_the_module(navigator):
    capability = ToolCapability(name="helper", description="", parameters={"x": {"type": "integer"}})
    created = checked(FunctionToolSpec(tool_id="h", module_path=navigator, capabilities=[capability]))
    assert created.target.function("helper")(x=1) == 2
    await created.target.aclose()


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        (
            {"module_path": "no_such_module"},
            ExecutorNotFound,
            "'no_such_module' cannot be imported.*correct the",
        ),
        (
            {"class_name": "BrowserNavigater"},
            ExecutorNotFound,
            "has no class 'BrowserNavigater'. Did you mean 'Browser",
        ),
        ({"init_params": {"size": 1}}, ExecutionFailed, "creating a BrowserNavigator failed with TypeError: .*'size'"),
        ({}, ExecutorNotFound, "'BrowserNavigator' has no function for the action 'navigat'. Did you mean 'navigate'"),
    ],
)
def test_what_cannot_be_found_is_said_when_it_is_called(navigator, names, error, message):
    spec = FunctionToolSpec(
        tool_id="nav",
        module_path=navigator,
        class_name="BrowserNavigator",
        capabilities=[ToolCapability(name="navigat", description="")],
    )
    created = checked(dataclasses.replace(spec, **names))
    with pytest.raises(error, match=message):
        created.target.function("navigat")


def test_a_module_that_breaks_when_imported_is_said_so(tmp_path, monkeypatch):
    (tmp_path / "broken_navigator.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    capability = ToolCapability(name="go", description="")
    created = checked(FunctionToolSpec(tool_id="b", module_path="broken_navigator", capabilities=[capability]))
    with pytest.raises(ExecutionFailed, match="importing module 'broken_navigator' failed with ZeroDivisionError"):
        created.target.function("go")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FunctionToolSpec(tool_id="x"), "module_path is empty"),
        (FunctionToolSpec(tool_id="x", module_path="no_such_module"), "no module 'no_such_module'.*list its capabil"),
        (FunctionToolSpec(tool_id="x", module_path="math"), "name a class in class_name"),
        (ToolSpec(tool_id="x"), "a ToolSpec does not name code; use a FunctionToolSpec"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(spec, message):
    with pytest.raises(SpecError, match=message):
        tool_of(spec)


def test_options_beside_a_spec_are_refused():
    with pytest.raises(SpecError, match="has a spec: set timeout there"):
        tool_of(FunctionToolSpec(tool_id="x", module_path="math"), timeout=1)
