"""An agent asks a person before a destructive call; the person may change the arguments. No key is needed."""

from ferrule import Agent, Approval, tool
from ferrule.agent import ApprovalRequest


@tool(destructive=True)
async def transfer(amount: float, to: str) -> str:
    """Transfer money in euros.

    Args:
        amount: how much
        to: who gets it
    """
    return f"Transferred {amount:g} euros to {to}."


class Accountant:
    def approve(self, request: ApprovalRequest) -> Approval | bool:
        print(f"approve {request.tool_id} with {request.arguments}?")
        if request.arguments["amount"] <= 100:
            return True
        return Approval(allowed=True, arguments={**request.arguments, "amount": 100})  # only a part of it


def main() -> None:
    agent = Agent([transfer], "offline", person=Accountant())
    print(agent.run_sync("transfer amount=40 to=Ann").text)
    print(agent.run_sync("transfer amount=900 to=Bob").text)


if __name__ == "__main__":
    main()
