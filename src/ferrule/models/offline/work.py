"""One turn's work on a question: which calls are still to be made, and what there is to say.

Nothing is kept between turns. The steps are worked out anew each time and compared with the calls that were made
since the question: so a conversation can go on in another process, and no call is made twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cache, partial
from typing import Any

from ferrule.messages import ToolCall
from ferrule.models.offline.catalogue import Catalogue, Offer
from ferrule.models.offline.choosing import SURE, Choice, choose, nearest
from ferrule.models.offline.conversation import Conversation, Done, plain
from ferrule.models.offline.filling import fill
from ferrule.models.offline.mending import mended
from ferrule.models.offline.steps import is_remark, parted_further, parts_of, speaks_of_result, with_result
from ferrule.models.offline.vocabulary import is_chinese
from ferrule.models.offline.wording import CHINESE, ENGLISH, tool_asked_about

_DEMANDED = 0.2
"""Sure enough when a call is demanded."""


class Work:
    """The calls to make now, and what to say when there are none."""

    def __init__(self, catalogue: Catalogue, talk: Conversation, now: datetime, *, demanded: bool = False) -> None:
        self._catalogue = catalogue
        self._talk = talk
        self._now = now
        self._choose = cache(partial(choose, catalogue, now=now, sure=_DEMANDED if demanded else SURE))
        self._made = list(talk.done)
        self._words = CHINESE if is_chinese(talk.question) else ENGLISH
        self._result: str | None = None
        self._not_done: list[str] = []
        self.calls: list[ToolCall] = []
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def go_through(self) -> None:
        """Do, or find done, what the question asks for, step by step."""
        supplied = self._supplied()
        if supplied is not None:
            self._do(supplied)
        else:
            self._do_steps(steps_of(self._talk.question, self._choose))
        self.tell_all()

    def tell_all(self) -> None:
        """Tell what calls gave that nobody has told yet, and what could not be done."""
        for done in self._made:  # calls somebody else made: the steps are theirs too
            self._tell(done)
            self._not_done = []
        self._made = []
        if not self.lines:
            question = self._talk.question
            self.lines.append(self._words.cannot(question, nearest(self._catalogue, question) if question else []))
            return
        self.lines += [self._words.not_done.format(step=step) for step in self._not_done if not is_remark(step)]

    def _do_steps(self, steps: list[str]) -> None:
        for place, step in enumerate(steps):
            text = step
            if place and speaks_of_result(step):
                if self.calls:
                    return  # what it speaks of is still to come
                if self._result is None:
                    self.lines.append(self._words.no_result.format(step=step))
                    continue
                text = with_result(step, self._result)
            choice = self._choose(text) if not is_remark(step) else None
            if choice is None:
                self._not_done.append(step)
            else:
                self._do(choice)

    def _do(self, choice: Choice) -> None:
        if not choice.is_ready:
            self.lines.append(self._words.missing_parameters(choice.offer, choice.missing))
            return
        for arguments in choice.calls:
            done = self._found(choice.offer, arguments)
            again = mended(done, choice.offer) if done is not None and done.failed else None
            if again is not None:
                arguments, done = again, self._found(choice.offer, again)
            if done is None:
                self.calls.append(ToolCall(name=choice.offer.name, arguments=arguments))
            else:
                self._tell(done)

    def _found(self, offer: Offer, arguments: dict[str, Any]) -> Done | None:
        """The call as it was made; perhaps with arguments that somebody changed, or that the clock did."""
        same = [done for done in self._made if done.name == offer.name]
        found = next((done for done in same if done.arguments == arguments), same[0] if same else None)
        if found is not None:
            self._made.remove(found)
        return found

    def _tell(self, done: Done) -> None:
        offer = self._catalogue.offers.get(done.name)
        tool = offer.spoken if offer is not None else done.name
        if done.failed:
            self._result = None
            self.lines.append(self._words.failure.format(tool=tool, text=done.answer.strip()))
        else:
            self._result = plain(done.answer)
            self.lines.append(self._words.result.format(tool=tool, text=self._result))

    def _supplied(self) -> Choice | None:
        """The call that lacked an argument before, if the question is that argument."""
        name = tool_asked_about(self._talk.said)
        offer = next((offer for offer in self._catalogue.offers.values() if offer.spoken == name), None)
        if offer is None or self._choose(self._talk.question) is not None:
            return None
        before = fill(offer, self._talk.before, self._now)
        wanted = {parameter.name for parameter in before.missing}
        answer = fill(offer.only(wanted), self._talk.question, self._now)
        if not wanted or len(answer.calls) != 1 or not answer.calls[0]:
            return None
        calls = [{**arguments, **answer.calls[0]} for arguments in before.calls]
        return Choice(offer=offer, filling=replace(answer, calls=calls), confidence=1.0)


def steps_of(question: str, choose_tool: Callable[[str], Choice | None]) -> list[str]:
    """The steps of a question, each a request of its own where that can be told."""

    def is_request(text: str) -> bool:
        choice = choose_tool(text)
        return choice is not None and choice.is_ready

    return [step for part in parts_of(question) for step in parted_further(part, is_request)]
