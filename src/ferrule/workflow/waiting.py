"""What a plan waits for: a person's answer, the approval of a call, or more money for its model."""

from __future__ import annotations

from typing import TypeAlias

from ferrule.agent.budget import RunBudget
from ferrule.core.model import Model, ModelReply, ModelRequest, ModelWrapper, TextSink
from ferrule.errors import BudgetSpent
from ferrule.policy.approvals import ApprovalRequest, Question

HumanRequest: TypeAlias = ApprovalRequest | Question
"""The approval or answer that a step needs from a person."""
HumanReply: TypeAlias = ApprovalRequest | str
"""A request with the person's decision, or the person's answer."""


class NeedsPerson(Exception):
    """A step, or a whole plan, cannot continue until a person has replied. Not an error of the model or the tool."""

    def __init__(self, request: HumanRequest) -> None:
        super().__init__(request.call_id)
        self.request = request


class ExtensionRequestingModel(ModelWrapper):
    """The model of a plan: when a budget that asks is spent, a person is asked for more, and the plan waits."""

    def __init__(self, model: Model, budget: RunBudget) -> None:
        super().__init__(model)
        self._budget = budget

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        try:
            return await self.model.generate(request, on_text)
        except BudgetSpent as spent:
            if not spent.must_ask or self._budget.costs is None:
                raise
            extension = await self._budget.costs.request_extension(self._budget.payer, spent)
        raise NeedsPerson(extension)
