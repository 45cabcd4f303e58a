"""The model for those who have none: it chooses tools by their words, and says so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from ferrule.messages import Usage
from ferrule.models.model import ModelReply, ModelRequest, TextSink
from ferrule.models.offline.catalogue import Catalogues
from ferrule.models.offline.conversation import read
from ferrule.models.offline.planning import answer
from ferrule.models.offline.work import Work


class OfflineModel:
    """Answers with the tools it is given, and with nothing else; the same question gets the same calls.

    It needs no key, no network and no weights. It knows nothing about the world beyond time zones, languages and
    currencies, and nothing about any tool beyond what its schema says.
    """

    name = "offline"
    thinks = False

    def __init__(self, *, clock: Callable[[], datetime] = datetime.now) -> None:
        self._clock = clock
        """What `tomorrow` is counted from."""
        self._catalogues = Catalogues()

    async def generate(self, request: ModelRequest, on_text: TextSink | None = None) -> ModelReply:
        """The next calls for the last question of the conversation, or what the calls made for it have given."""
        talk = read(request.messages)
        catalogue = self._catalogues.of(request.tools)
        now = self._clock()
        if request.answer_schema is not None:
            return _said(answer(request.answer_schema, talk.question, catalogue, now), on_text)
        work = Work(catalogue, talk, now, demanded=request.tool_choice == "required")
        if request.tool_choice == "none":
            work.tell_all()
        else:
            work.go_through()
        if work.calls:
            return ModelReply(tool_calls=tuple(work.calls), usage=Usage(requests=1), finish_reason="tool_calls")
        return _said(work.text, on_text)


def _said(text: str, on_text: TextSink | None) -> ModelReply:
    if on_text is not None:
        on_text(text)
    return ModelReply(text=text, usage=Usage(requests=1))
