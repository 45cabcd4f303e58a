"""The tasks of a batch: one JSON object per line, read one after the other however long the file is."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from ferrule.agent.run import RUN_PREFIX, Run
from ferrule.core.names import did_you_mean
from ferrule.errors import SetupError
from ferrule.store import ToolKnowledgeStore

TASK_KEYS = ("id", "task", "tools", "metadata")
MAX_ID_LENGTH = 200
_EXAMPLE = 'A line looks like {"id": "t1", "task": "what to do"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTask:
    """One task: `{"id": …, "task": …, "tools": […]?, "metadata": {…}?}`."""

    id: str
    task: str
    tools: tuple[str, ...] | None = None
    """The only tools that may be used for it; None: all tools of the batch."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Passed on to the trajectory; never shown to the model."""

    @property
    def digest(self) -> str:
        """Return a digest of the text and the tools, which is equal for tasks that ask the same."""
        return hash_task(self.task, self.tools)

    def to_dict(self) -> dict[str, Any]:
        line: dict[str, Any] = {"id": self.id, "task": self.task}
        if self.tools is not None:
            line["tools"] = list(self.tools)
        if self.metadata:
            line["metadata"] = dict(self.metadata)
        return line


def hash_task(task: str, tools: Iterable[str] | None) -> str:
    names = None if tools is None else sorted(tools)
    content = orjson.dumps([task.encode("utf-8", "replace").decode(), names])
    return hashlib.sha256(content).hexdigest()[:16]


def make_task(values: Mapping[str, Any]) -> BatchTask:
    """Make a task from the values of one line. Without an `id`, the task gets one made from its content."""
    for key in values:
        if key not in TASK_KEYS:
            raise SetupError(f"there is no {key!r} in a task.{did_you_mean(key, TASK_KEYS)} Put it into `metadata`.")
    text, tools, metadata = values.get("task"), values.get("tools"), values.get("metadata") or {}
    if not isinstance(text, str) or not text.strip():
        raise SetupError("`task` must be a text that says what to do")
    if tools is not None and not (isinstance(tools, list) and all(isinstance(name, str) for name in tools)):
        raise SetupError(f"`tools` must be a list of names of tools, not {tools!r}")
    if not isinstance(metadata, dict):
        raise SetupError(f"`metadata` must be an object, not {metadata!r}")
    task_id = values.get("id")
    if task_id is None or task_id == "":
        task_id = hash_task(text, tools)
    if isinstance(task_id, bool) or not isinstance(task_id, (str, int)):
        raise SetupError(f"`id` must be a text or a whole number, not {task_id!r}")
    if len(str(task_id)) > MAX_ID_LENGTH:
        raise SetupError(f"`id` has more than {MAX_ID_LENGTH} characters")
    return BatchTask(id=str(task_id), task=text, tools=None if tools is None else tuple(tools), metadata=dict(metadata))


def read_tasks(path: Path | str) -> Iterator[BatchTask]:
    """Yield the tasks of a file, `-` for standard input. Raises SetupError for a wrong line."""
    if str(path) == "-":
        yield from _parse_lines(sys.stdin.buffer, "standard input")
        return
    try:
        with Path(path).open("rb") as file:
            yield from _parse_lines(file, str(path))
    except OSError as error:
        raise SetupError(f"The tasks cannot be read from {path}: {error.strerror}.") from None


def _parse_lines(lines: Iterable[bytes], name: str) -> Iterator[BatchTask]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            values = orjson.loads(line)
            if not isinstance(values, dict):
                raise SetupError("a task is a JSON object")
            yield make_task(values)
        except orjson.JSONDecodeError as error:
            raise SetupError(f"{name}:{number}: not valid JSON: {error.msg}. {_EXAMPLE}") from None
        except SetupError as error:
            raise SetupError(f"{name}:{number}: {error}. {_EXAMPLE}") from None


def check_tasks(path: Path | str) -> int | None:
    """Count the tasks of a file; None for a source that can be read only once.

    Raises SetupError for the first wrong line.
    """
    if str(path) == "-" or (Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir()):
        return None
    number = sum(1 for _ in read_tasks(path))
    if not number:
        raise SetupError(f"{path} has no tasks. {_EXAMPLE}")
    return number


# Tasks from recorded runs

_CONTROL_TOOLS = frozenset({"finish_task", "ask_user", "get_conversation_history"})


async def read_tasks_from_runs(
    store: ToolKnowledgeStore, *, states: frozenset[str] = frozenset({"finished"}), since: float = 0.0
) -> AsyncIterator[BatchTask]:
    """Yield the tasks of the runs in a store, the latest first; of equal questions only the latest."""
    questions: set[str] = set()
    for stream, written_at in (await store.list_streams(RUN_PREFIX)).items():
        if written_at < since:
            return
        run = await Run.load(stream.removeprefix(RUN_PREFIX), store)
        digest = hash_task(normalize_question(run.task), None)
        if run.state.value not in states or not run.task.strip() or digest in questions:
            continue
        questions.add(digest)
        steps = [step for step in run.steps if step.tool_id not in _CONTROL_TOOLS]
        metadata = {
            "run_id": run.id,
            "state": run.state.value,
            "answer": run.text,
            "turns": run.turns,
            "calls": len(run.steps),
            "last_results": {step.tool_id: step.text for step in steps if step.is_success},
        }
        tools = tuple(dict.fromkeys(step.tool_id for step in steps)) or None
        yield BatchTask(id=digest, task=run.task, tools=tools, metadata=metadata)


def normalize_question(text: str) -> str:
    """Remove what may differ between equal questions: case, spaces and the sign at the end."""
    return re.sub(r"\s+", " ", text).strip().rstrip("?？.。!！ ").casefold()
