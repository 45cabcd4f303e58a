"""A plan on its way: a tree that lives at a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ferrule.cli.terminal import complain, visible
from ferrule.describe.sentences import on_one_line, within
from ferrule.workflow.plan import NO_TOOL, Plan, PlanStep
from ferrule.workflow.results import StepResult
from ferrule.workflow.workflow import PlanMade, StepEnded

_SHOWN = 100


class PlanTree:
    """Shows which steps there are, which run, and what came of them."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._plan: Plan | None = None
        self._results: dict[str, StepResult] = {}
        self._live: Any = None

    def __call__(self, event: Any) -> None:
        if isinstance(event, PlanMade):
            self._results |= {str(result.step_id): result for result in event.known}
            self._begin(event.plan)
        elif isinstance(event, StepEnded):
            self._results[str(event.result.step_id)] = event.result
            if self._live is not None:
                self._live.update(self._tree())
            elif not self._quiet and self._is_worth_showing():
                complain(self._line(event.result))

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Not to be written over while somebody types."""
        live = self._live
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            if live is not None:
                live.start()

    def finish(self) -> None:
        """Leave it as it is."""
        if self._live is not None:
            self._live.update(self._tree())
            self._live.stop()
            self._live = None

    def _begin(self, plan: Plan) -> None:
        before, self._plan = self._plan, plan
        if self._quiet or not self._is_worth_showing():
            return
        if self._live is not None:
            self._live.update(self._tree())
        elif sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(self._tree(), console=Console(stderr=True), refresh_per_second=8, transient=False)
            self._live.start()
        else:
            for step in plan.steps:
                known = self._results.get(str(step.id))
                if before is None or step.id not in {one.id for one in before.steps}:
                    complain(f"  {step.id}. {_said(step)}" if known is None else self._line(known))

    def _is_worth_showing(self) -> bool:
        """A single step says nothing that its answer does not."""
        return self._plan is not None and len(self._plan.steps) > 1

    def _tree(self) -> Any:
        from rich.spinner import Spinner
        from rich.text import Text
        from rich.tree import Tree

        assert self._plan is not None
        tree = Tree(Text("plan", style="bold"), guide_style="dim")
        for step in self._plan.steps:
            result = self._results.get(str(step.id))
            if result is not None:
                style = "green" if result.success else "yellow" if result.skipped else "red"
                tree.add(Text(visible(self._line(result)), style=style, overflow="ellipsis", no_wrap=True))
            elif all(str(one) in self._results for one in step.dependencies):
                tree.add(Spinner("dots", text=Text(visible(f"{step.id}. {_said(step)}"))))
            else:
                tree.add(Text(visible(f"· {step.id}. {_said(step)}"), style="dim"))
        return tree

    def _line(self, result: StepResult) -> str:
        assert self._plan is not None
        mark = "✓" if result.success else "–" if result.skipped else "✗"
        told = result.result if result.success else result.error or "failed"
        step = self._plan[result.step_id]
        return f"{mark} {step.id}. {_said(step)} → {within(on_one_line(told), _SHOWN)}"


def _said(step: PlanStep) -> str:
    tool = "" if step.tool_type == NO_TOOL else f" [{step.tool_type}]"
    return within(on_one_line(step.description), _SHOWN) + tool
