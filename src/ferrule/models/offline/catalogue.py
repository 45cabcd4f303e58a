"""The tools of a request, ready to be chosen from.

Made once for a list of tools and kept: a turn costs the same with ten tools and with a thousand.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ferrule.messages import Schema
from ferrule.models.offline.parameter import Parameter, parameters_in
from ferrule.models.offline.vocabulary import GLOSSARY, is_generic
from ferrule.names import from_model_name
from ferrule.search import SearchIndex
from ferrule.search.words import is_cjk, terms_of
from ferrule.spec import Tool, ToolCapability, ToolSpec
from ferrule.tags import DEFAULT_TABLE, extract_tags
from ferrule.validation.schema_walk import properties_of

_KEPT = 4
_HEAD = 6
"""Of a description, the terms that say what the tool does rather than how."""
NOT_FOR_QUESTIONS = frozenset({"finish_task", "ask_user", "search_tools", "call_tool"})
"""Tools by which a model speaks to its agent, or looks for others; no question asks for them."""


@dataclass(frozen=True, eq=False)
class Offer:
    """One tool as it was offered."""

    name: str
    description: str
    schema: dict[str, Any]
    """Its parameters, as JSON Schema."""

    @cached_property
    def spoken(self) -> str:
        """Its name as its owner wrote it."""
        return from_model_name(self.name)

    def accepts(self, arguments: Any) -> bool:
        """Whether arguments follow its schema; a tool whose schema is broken accepts nothing."""
        validator = self._validator
        return validator is not None and validator.is_valid(arguments)

    def only(self, names: Collection[str]) -> Offer:
        """The tool as if it asked for some of its parameters and nothing else."""
        properties = {name: said for name, said in properties_of(self.schema).items() if name in names}
        schema = {**self.schema, "properties": properties, "required": list(properties)}
        return Offer(name=self.name, description=self.description, schema=schema)

    @cached_property
    def _validator(self) -> Any:
        import jsonschema_rs  # 30 ms to import: only when there is a call to check

        try:
            return jsonschema_rs.validator_for(self.schema, offline=True)
        except ValueError:
            return None

    @cached_property
    def tags(self) -> frozenset[str]:
        return frozenset(extract_tags(self.spoken.replace("_", " "), self.description))

    @cached_property
    def parameters(self) -> list[Parameter]:
        return parameters_in(self.schema)

    @cached_property
    def name_terms(self) -> frozenset[str]:
        return frozenset(term for term in terms_of(self.spoken) if not is_generic(term))

    @cached_property
    def terms(self) -> frozenset[str]:
        """What its name and description say."""
        return frozenset(terms_of(self.spoken)) | frozenset(terms_of(self.description))

    @cached_property
    def head_terms(self) -> frozenset[str]:
        """The words one would use to ask for it, and which are no argument then."""
        return frozenset(terms_of(self.spoken)) | frozenset(terms_of(self.description)[:_HEAD])

    @cached_property
    def parameter_terms(self) -> frozenset[str]:
        said = " ".join(f"{parameter.name} {parameter.description}" for parameter in self.parameters)
        return frozenset(terms_of(said))

    @cached_property
    def chinese_words(self) -> dict[str, str]:
        """Chinese words that ask for it, the longest first, and which of its terms each stands for."""
        words = {term: term for term in self.terms if is_cjk(term)}
        for word, tags in DEFAULT_TABLE.words.items():
            if is_cjk(word) and self.tags.intersection(tags):
                same = (term for term in self.name_terms if {*DEFAULT_TABLE.tags_in([term])}.intersection(tags))
                words.setdefault(word, next(same, word))
        words.update((word, term) for word, term in GLOSSARY.items() if term in self.terms)
        return dict(sorted(words.items(), key=lambda pair: -len(pair[0])))


class Catalogue:
    """All tools of a request."""

    def __init__(self, tools: Sequence[Schema]) -> None:
        self.offers: dict[str, Offer] = {}
        self._index = SearchIndex()
        for offer in map(_offer, tools):
            if offer is not None and offer.name not in self.offers and offer.name not in NOT_FOR_QUESTIONS:
                self.offers[offer.name] = offer
                self._index.add(_as_tool(offer))

    @cached_property
    def computing(self) -> list[Offer]:
        """Tools that take an arithmetic expression: a question may be one, and have no other word."""
        return self._taking("expression", 1)

    @cached_property
    def exchanging(self) -> list[Offer]:
        """Tools that take two currencies: `100 USD in EUR` has no other word either."""
        return self._taking("currency", 2)

    def _taking(self, kind: str, least: int) -> list[Offer]:
        return [o for o in self.offers.values() if sum(p.kind == kind for p in o.parameters) >= least]

    def search(self, text: str, limit: int = 8) -> list[Offer]:
        """The tools that fit a text best. What Chinese words stand for is looked for too, so that either finds both."""
        meant = [*DEFAULT_TABLE.tags_in([text]), *(term for word, term in GLOSSARY.items() if word in text)]
        return [self.offers[hit.tool.id] for hit in self._index.search(f"{text} {' '.join(meant)}", limit)]


class Catalogues:
    """The catalogues of the last lists of tools."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], tuple[list[Schema], Catalogue]] = OrderedDict()

    def of(self, tools: Sequence[Schema]) -> Catalogue:
        key = tuple(map(id, tools))
        known = self._kept.get(key)
        if known is None:
            # A list made anew each turn has other objects and the same words.
            same = next((kept for kept in self._kept.values() if kept[0] == list(tools)), None)
            known = (list(tools), same[1] if same is not None else Catalogue(tools))
            self._kept[key] = known
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return known[1]


def _offer(schema: Any) -> Offer | None:
    function = schema.get("function", schema) if isinstance(schema, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"].strip():
        return None
    parameters = function.get("parameters")
    return Offer(
        name=function["name"],
        description=str(function.get("description") or ""),
        schema=parameters if isinstance(parameters, dict) else {},
    )


def _as_tool(offer: Offer) -> Tool:
    capability = ToolCapability(
        name=offer.name, description=offer.description, parameters={"type": "object", **offer.schema}
    )
    spec = ToolSpec(
        tool_id=offer.name,
        name=offer.spoken,
        description=offer.description,
        capabilities=[capability],
        tags=sorted(offer.tags),
    )
    return Tool(spec=spec, handler="")
