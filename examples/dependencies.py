"""Tools get what they need of your program from the run, and a conversation goes on with the messages of its answer."""

import asyncio
from dataclasses import dataclass

from ferrule import Agent, RunContext
from ferrule.testing import ScriptedModel


@dataclass
class Account:
    owner: str
    balance: int


async def withdraw(context: RunContext[Account], amount: int) -> int:
    """Withdraw money from the account of the user."""
    context.deps.balance -= amount
    return context.deps.balance


async def main() -> None:
    call = {"name": "withdraw", "arguments": {"amount": 20}}
    model = ScriptedModel([call, "You have 30 left.", call, "Now you have 10."])
    ann = Account("Ann", 50)
    async with Agent([withdraw], model, model_settings={"temperature": 0}) as agent:
        answer = await agent.run("Withdraw 20, please.", deps=ann)
        answer = await agent.run("The same again.", deps=ann, history=answer.messages)
        print(answer.text, ann)
        print([run.state.value for run in await agent.runs()])


if __name__ == "__main__":
    asyncio.run(main())
