"""A plugin for Ferrule: a tool with settings in `[tools.roll_dice]`, a tool without settings, and a policy."""

import random
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from ferrule import Policy, Rule, tool
from ferrule.engine.plugins import PluginContext


class DiceConfig(BaseModel):
    """The section `[tools.roll_dice]`."""

    model_config = ConfigDict(extra="forbid")

    sides: int = Field(default=6, ge=2)


def build(context: PluginContext) -> list[Any]:
    """Called when `roll_dice` is needed: returns the tools with the settings of this project."""
    config = context.config("roll_dice", DiceConfig)

    @tool(tags=["random"])
    async def roll_dice(count: int = 1) -> list[int]:
        """Roll dice.

        Args:
            count: how many dice
        """
        return [random.randint(1, config.sides) for _ in range(count)]

    return [roll_dice]


@tool(tags=["random"])
async def coin_flip() -> str:
    """Flip a coin."""
    return random.choice(["heads", "tails"])


def careful(options: Mapping[str, Any]) -> Policy:
    """The policy that `[policy] provider = "careful"` selects: a person approves every change a model wants."""
    return Policy(rules=[*options["rules"], Rule(verdict="ask", effect="changing", principal="agent")])
