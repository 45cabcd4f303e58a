"""Tools to describe: a Python function, and a spec as in the design documents."""

from typing import Annotated, Literal

from ferrule.core.spec import FunctionToolSpec, Tool, ToolCapability
from ferrule.kinds.function.tools import tool_of


async def forecast(
    city: str, days: Annotated[int, "how many, from today"] = 3, unit: Literal["C", "F"] = "C"
) -> dict[str, str]:
    """Tell the weather of the next days. Knows every town.

    Args:
        city: the name of a city
    """
    return {"city": city, "unit": unit, "days": str(days)}


FORECAST = tool_of(forecast, tags=["weather"], read_only=True)

BROWSER = Tool(
    spec=FunctionToolSpec(
        tool_id="browser_navigator",
        name="网页导航器",
        description="提供网页导航和元素交互功能",
        capabilities=[
            ToolCapability(
                name="navigate",
                description="导航到指定网页",
                parameters={"url": {"type": "string", "description": "目标网页URL", "required": True}},
                examples=[{"url": "https://www.example.com"}],
            ),
            ToolCapability(
                name="click",
                description="点击页面元素",
                parameters={"selector": {"type": "string", "description": "CSS选择器", "required": True}},
                examples=[{"selector": "#submit-button"}],
            ),
        ],
        tags=["web", "automation", "browser"],
    ),
    handler="function",
)
