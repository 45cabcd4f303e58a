"""LangChain with a model whose turns are known. The framework is loaded when it is used."""

from typing import Any

from ferrule import UnifiedToolLibrary

CALLER = "langchain"
VARIABLES = '["config"]'
PICTURE = [{"type": "text", "text": "here"}, {"type": "image", "base64": "aGk=", "mime_type": "image/png"}]


def asked(name: str, call_id: str = "1", **arguments: Any) -> Any:
    from langchain_core.messages import AIMessage

    return AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": call_id, "type": "tool_call"}])


async def conversation(tools: list[Any], *turns: Any, **config: Any) -> list[Any]:
    """What an agent's loop does, with a model whose turns are known; a text is its answer."""
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage, HumanMessage

    turns = tuple(AIMessage(turn) if isinstance(turn, str) else turn for turn in turns)
    model, by_name = GenericFakeChatModel(messages=iter(turns)), {tool.name: tool for tool in tools}
    messages: list[Any] = [HumanMessage("Go.")]
    while True:
        answer = await model.ainvoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return messages
        for call in answer.tool_calls:
            messages.append(await by_name[call["name"]].ainvoke(call, config={"configurable": config}))


async def run(library: UnifiedToolLibrary, *turns: tuple[str, Any] | str, conversation_id: str = "c") -> list[Any]:
    """What the model is told of its calls."""
    calls = [turn if isinstance(turn, str) else asked(turn[0], **turn[1]) for turn in turns]
    messages = await conversation(await tools_of(library), *calls, thread_id=conversation_id)
    return [message.content for message in messages if message.type == "tool"]


async def tools_of(library: UnifiedToolLibrary, names: list[str] | None = None) -> list[Any]:
    from ferrule.adapters.langchain import as_langchain_tools

    return as_langchain_tools(library, tools=names)


async def schemas_of(library: UnifiedToolLibrary) -> list[Any]:
    from langchain_core.utils.function_calling import convert_to_openai_tool

    return [convert_to_openai_tool(tool) for tool in await tools_of(library)]
