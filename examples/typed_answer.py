"""An agent whose answer is a pydantic model. The script stands for a real model, such as "openai:gpt-5.4"."""

from pydantic import BaseModel

from ferrule import Agent
from ferrule.testing import ScriptedModel


class Offer(BaseModel):
    product: str
    total: float


async def price(product: str) -> float:
    """Tell the price of a product in euros."""
    return {"lamp": 19.9, "desk": 240.0}[product]


def main() -> None:
    model = ScriptedModel(
        [
            {"name": "price", "arguments": {"product": "lamp"}},
            '{"product": "lamp", "total": "many"}',  # wrong: the model is told why, and asked again
            '{"product": "lamp", "total": 59.7}',
        ]
    )
    answer = Agent([price], model).run_sync("What do three lamps cost?", output=Offer)
    print(answer.output.product, answer.output.total, "after", answer.usage.requests, "requests")


if __name__ == "__main__":
    main()
