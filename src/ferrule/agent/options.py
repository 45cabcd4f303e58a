"""What a run is given: its task, and its options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypedDict

from ferrule.agent.answer import OnEvent
from ferrule.agent.budget import RunBudget
from ferrule.agent.calls import ApprovalDecisions
from ferrule.core.content import Image
from ferrule.core.messages import Message
from ferrule.core.model import ModelSettings
from ferrule.errors import SetupError

Task: TypeAlias = str | Sequence[str | Image]


class RunOptions(TypedDict, total=False):
    """The parameters of `Agent.run` besides the task and the type of the answer."""

    history: Sequence[Message]
    run_id: str | None
    on_event: OnEvent | None
    budget: RunBudget | None
    deps: Any
    model_settings: ModelSettings | None


class ResumeOptions(TypedDict, total=False):
    """The parameters of `Agent.resume` besides the run, the answer and the type of the run's answer."""

    approvals: ApprovalDecisions
    on_event: OnEvent | None
    deps: Any
    model_settings: ModelSettings | None


def read_task(task: Task) -> tuple[str, list[Image]]:
    """Return the text and the images of a task."""
    parts = [task] if isinstance(task, str) else list(task) if isinstance(task, Sequence) else [task]
    text, images = (
        "\n".join(part for part in parts if isinstance(part, str)),
        [p for p in parts if isinstance(p, Image)],
    )
    if not text.strip() or not all(isinstance(part, (str, Image)) for part in parts):
        raise SetupError(f"task must be a string that is not empty, or a list of strings and images, not {task!r}.")
    return text, images
