"""Functions that change variables of their module, and functions that only read them."""

import functools
import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

names: list[str] = []
counts = {"a": [0]}
words = Counter[str]()
state = SimpleNamespace(total=0)
total = 0
logger = logging.getLogger("sample")


class Inventory:
    limit = 3

    def __init__(self) -> None:
        self.items: list[str] = []
        self.size = 0

    def add(self, item: str) -> None:
        self.items.append(item)

    def grow(self) -> None:
        self._set_size(self.size + 1)

    def _set_size(self, size: int) -> None:
        self.size = size

    def list_items(self) -> list[str]:
        result: list[str] = []
        result.extend(self.items)
        return result


inventory = Inventory()


def append_to_list(name: str = "x") -> None:
    names.append(name)


def change_in_comprehension() -> list[str]:
    return [names.pop() for _ in range(len(names))]


def append_in_helper() -> None:
    append_to_list("x")


def set_item() -> None:
    counts["b"] = [1]


def increase_item() -> None:
    counts["a"] += [1]


def delete_items() -> None:
    del names[:]


def change_part_of_item() -> None:
    counts["a"].append(1)


def change_default() -> None:
    counts.setdefault("c", [0])[0] = 2


def assign_global() -> None:
    global total
    total += 1


def set_attribute() -> None:
    state.total = 1


def set_class_attribute() -> None:
    Inventory.limit = 4


def call_method() -> None:
    inventory.add("x")


def call_method_that_assigns() -> None:
    inventory.grow()


def change_attribute_of_object() -> None:
    inventory.items.append("x")


def update_counter() -> None:
    words.update("a")


def count_calls(function: Callable[..., Any]) -> Callable[..., Any]:
    calls: list[int] = []

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return function(*args, **kwargs)

    return wrapper


@count_calls
def decorated() -> None:
    pass


CHANGING = {
    append_to_list: "names",
    change_in_comprehension: "names",
    append_in_helper: "names",
    set_item: "counts",
    increase_item: "counts",
    delete_items: "names",
    change_part_of_item: "counts",
    change_default: "counts",
    assign_global: "total",
    set_attribute: "state",
    set_class_attribute: "Inventory",
    call_method: "inventory",
    call_method_that_assigns: "inventory",
    change_attribute_of_object: "inventory",
    update_counter: "words",
    decorated: "calls",
}


def read_variables() -> list[Any]:
    logger.info("reading")
    return [len(names), counts["a"], counts.get("b"), state.total, inventory.list_items(), *words]


def change_copies() -> list[str]:
    own = [*names]
    own.append("x")
    by_name = dict(counts)
    by_name["x"] = []
    return own


def change_new_object() -> list[str]:
    new = Inventory()
    new.add("x")
    return new.items


def change_own_closure() -> int:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    call()
    return calls


def read_without_variables() -> list[int]:
    return [number for number in (1, 2)]


class Hooks:
    read: Callable[[], list[int]]


hooks = Hooks()
hooks.read = read_without_variables


def call_function_of_an_object() -> int:
    return len(hooks.read())


READING = [read_variables, change_copies, change_new_object, change_own_closure, call_function_of_an_object]
