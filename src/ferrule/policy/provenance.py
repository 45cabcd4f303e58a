"""Where the values of a run come from, and which calls may use them without a question.

The texts of a run are *trusted* (instructions, what the user wrote and answered, results of tools that declare
`trusted_output`) or *untrusted* (everything else that tools return). After a run has seen untrusted text, a call that
changes something is asked about if a target of the call, such as a recipient, is not in a trusted text as a whole word.

Nothing is searched before that question arises: a result costs one entry in a list.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, Final, Literal, TypeAlias, get_args

from ferrule.catalog.parameter_roles import ParameterRole, ParameterRoles, Role
from ferrule.catalog.tags import begins_with_reading, changes, only_reads
from ferrule.core.call import ToolExecutionResult
from ferrule.core.content import as_text
from ferrule.core.json_schema import properties_of
from ferrule.core.messages import Message, is_note, text_of_message
from ferrule.core.permission import Decision
from ferrule.core.spec import Tool, ToolCapability
from ferrule.errors import SetupError
from ferrule.policy.trusted_texts import (
    EMAIL,
    LETTER,
    LINK,
    SHORT_NUMBER,
    TrustedTexts,
    cut_link,
    normalize_text,
    split_url,
)
from ferrule.policy.values import (
    MEMBER_WORDS,
    NAME_ROLE,
    PLAIN_NUMBER,
    ArgumentValue,
    find_ids,
    find_leaves,
    find_names,
    find_values,
    has_text,
    singular_words,
    words_of,
)

_PLAIN_SEGMENT: Final = re.compile(r"[^\W\d_]{0,24}(?:[-_.()][^\W\d_]{0,24}){0,8}")
_SENT_WORDS: Final = frozenset(
    "auth body cookie data field form header json param parameter payload query session token 参数 查询".split()
)
"""Words of parameters whose values are sent to the URL of a call."""
_COMMON_WORDS: Final = frozenset("api call com http https request tool url web www".split())
"""Words of names of tools that say nothing of what a call does; some are in every URL."""
_PLAIN_HEADERS: Final = frozenset({"accept", "accept-language"})
_REPEATING_TOOLS: Final = frozenset(
    {"echo", "file_processor", "list_workspace_files", "python_executor", "search_files", "summarize"}
)
"""Bundled tools whose results may be what the model has written, also in an earlier call."""
_MAX_FREE_WORDS: Final = 4
"""Words of the host, and of the path, of a URL that stands in no text."""
_MAX_ORIGINS: Final = 5
_MAX_DESCRIBED: Final = 20
_MAX_EXCERPT: Final = 100
_PAGE: Final = ParameterRole(role="target", kind="page")
UNTRUSTED_TARGETS: Final = "[policy] untrusted_targets"
"""Is in the reason of a request that this setting has caused, in every language."""
_READING_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

UntrustedTargets: TypeAlias = Literal["ask", "deny", "allow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenanceRules:
    """What a policy says about values from outside."""

    untrusted_targets: UntrustedTargets = "ask"
    own_domains: tuple[str, ...] = ()
    trusted_output: tuple[str, ...] = ()
    """Tools whose results are trusted although they do not declare it: ids, names for models, or patterns."""
    parameter_roles: Mapping[str, Role] = field(default_factory=dict)
    """By `tool.parameter` or a pattern: `target` or `content`, for tools that do not declare it."""
    has_origin_rules: bool = False
    """Whether rules of the policy depend on the origin of targets."""

    def __post_init__(self) -> None:
        if self.untrusted_targets not in get_args(UntrustedTargets):
            raise SetupError(f"untrusted_targets must be ask, deny or allow, not {self.untrusted_targets!r}.")
        for name, role in self.parameter_roles.items():
            if role not in get_args(Role):
                raise SetupError(f"The role of {name!r} must be target or content, not {role!r}.")
        for name in ("own_domains", "trusted_output"):
            if isinstance(getattr(self, name), str):
                raise SetupError(f"{name} of a policy must be a list: write [{getattr(self, name)!r}].")

    @classmethod
    def of(cls, policy: Any, untrusted_targets: UntrustedTargets | None = None) -> ProvenanceRules:
        """Return the rules of a policy; a policy of the user's own may lack them. The second argument wins."""
        rules = getattr(policy, "provenance", None)
        rules = rules if isinstance(rules, ProvenanceRules) else cls()
        if any(getattr(rule, "origin", "") for rule in getattr(policy, "rules", ())):
            rules = replace(rules, has_origin_rules=True)
        return rules if untrusted_targets is None else replace(rules, untrusted_targets=untrusted_targets)

    @property
    def are_used(self) -> bool:
        """Return whether anything depends on where the values of a run come from."""
        return self.untrusted_targets != "allow" or self.has_origin_rules

    def explain(self, tool: Tool, capability: ToolCapability) -> str:
        """Return what happens to calls of an action in a run that has seen untrusted text, as a sentence."""
        if self.untrusted_targets == "allow" or capability.auto_approve or _is_file_of_workspace(tool, capability):
            return ""
        roles = ParameterRoles(self.parameter_roles).roles_of(tool.spec, capability)
        targets = [name for name, role in roles.items() if role.is_target]
        verb = "asks a person" if self.untrusted_targets == "ask" else "is refused"
        if only_reads(tool.spec, capability):
            urls = [name for name in targets if roles[name].kind == "url"]
            condition = f"{' or '.join(urls)} may send data out" if urls else ""
        elif targets:
            condition = f"{' or '.join(targets)} has a value that the user has not named"
        else:
            condition = "the user has not named what it makes or sets"
        return condition and f"In a run that has read text from outside, it {verb} if {condition}."


@dataclass(frozen=True, slots=True, kw_only=True)
class UntrustedTarget:
    """The first target of a call that is in no trusted text."""

    parameter: str
    value: str
    reason: str


class UntrustedArguments(dict[str, Any]):
    """The arguments of a call that has an untrusted target, for rules with `origin = "untrusted"`."""

    def __init__(self, arguments: Mapping[str, Any], target: UntrustedTarget) -> None:
        super().__init__(arguments)
        self.target = target


@dataclass(slots=True)
class _Result:
    """What a tool returned. What is said about it is made when somebody asks."""

    output: Any
    number: int
    action: tuple[Tool, ToolCapability] | None = None
    source: str = ""
    """Where it comes from, if it is no result of a call of this process."""
    arguments: str = ""
    text: str | None = None

    @property
    def label(self) -> str:
        if self.source or self.action is None:
            return self.source
        tool, capability = self.action
        return _describe_result(tool.spec.model_name(capability), self.number, self.output)

    @property
    def is_structured(self) -> bool:
        """Return whether the values in its fields may be ids."""
        if self.source or self.action is None or not isinstance(self.output, dict) or self.output.get("untrusted"):
            return False
        if self.output.keys() == {"result"} and isinstance(self.output["result"], str):
            tool, capability = self.action
            return not only_reads(tool.spec, capability)  # the id of what was made
        return True

    def has_link(self, url: str) -> bool:
        """Return whether the result has a URL that the model cannot have put there by the arguments of the call."""
        if not re.search(rf"{re.escape(url)}(?![{LETTER}/?=&%#-]|[.:@+,][{LETTER}])", self.read_text()):
            return False
        repeats = self.action is not None and self.action[0].id in _REPEATING_TOOLS
        return not repeats and len(self.arguments) <= _MAX_EXCERPT * 2 and url not in normalize_text(self.arguments)

    def read_text(self) -> str:
        if self.text is None:
            self.text = normalize_text(as_text(self.output))
        return self.text


class RunOrigins:
    """The trusted and untrusted texts of one run."""

    def __init__(self, rules: ProvenanceRules, trusted: Iterable[str] = ()) -> None:
        self.rules = rules
        self._roles = ParameterRoles(rules.parameter_roles)
        self._trusted = TrustedTexts(frozenset(domain.lower().lstrip("@") for domain in rules.own_domains))
        self._results: list[_Result] = []
        self._ids: dict[Hashable, dict[str, set[str]]] = {}
        """By toolset and id: the words of the fields and tools that the id comes from."""
        self._indexed = 0
        self.has_untrusted = False
        """Whether the run has seen untrusted text."""
        for text in trusted:
            self.add_trusted(text)

    # The texts

    def add_trusted(self, text: str) -> None:
        self._trusted.add(text)

    def add_untrusted(self, text: Any, label: str) -> None:
        """Add what was said in an earlier conversation, or what a stored step of the run returned."""
        self._results.append(_Result(text, len(self._results) + 1, source=label))
        self.has_untrusted = True

    def add_result(
        self,
        tool: Tool,
        capability: ToolCapability,
        arguments: Any,
        result: ToolExecutionResult,
        *,
        was_run: bool,
        is_of_model: bool,
    ) -> None:
        """Add what a call returned. The instructions of a skill are the user's files, and neither kind of text.

        A failed call counts if its tool `was_run`: its error may be the tool's own text. `is_of_model` is false for a
        call that a tool has made, whose arguments may come from anywhere.
        """
        if _is_skill(tool, capability):
            return
        if is_of_model and not self.has_untrusted and (result.is_success or was_run):
            self._trust_arguments(arguments)
        if result.is_success:
            output: Any = result.output
        elif was_run:
            output = result.error
        else:
            return
        is_trusted = result.is_success and self._is_trusted_output(tool, capability) and not output.get("untrusted")
        if is_trusted and (not self.has_untrusted or self._are_trusted(arguments)):
            self.add_trusted(as_text(output))
            return
        names = properties_of(capability.output) if capability.output else {}
        if result.content or has_text(output, {"result", *names}):  # numbers and booleans give no instructions
            number = len(self._results) + 1
            self._results.append(_Result(output, number, (tool, capability), arguments=as_text(arguments)))
            self.has_untrusted = True

    def add_conversation(self, messages: Iterable[Message]) -> None:
        """Add the messages before the model's first reply: what the user has written, and what models have answered."""
        for message in messages:
            text, role = text_of_message(message), message["role"]
            if role == "user" and not is_note(message):
                self.add_trusted(text)
            elif role != "system" and text:
                self.add_untrusted(text, "from the conversation before")

    def add_stored_result(
        self, action: tuple[Tool, ToolCapability] | None, name: str, arguments: Any, output: Any, *, is_success: bool
    ) -> None:
        """Add what a call of a resumed run returned. Of a step only the text is stored: its fields hold no ids."""
        if action is not None and _is_skill(*action):
            return
        if is_success and not self.has_untrusted:  # a failed call may be one that the user has refused
            self._trust_arguments(arguments)
        text = as_text(output)
        is_trusted = is_success and action is not None and self._is_trusted_output(*action)
        if is_trusted and (not self.has_untrusted or self._are_trusted(arguments)):
            self.add_trusted(text)
        elif not PLAIN_NUMBER.fullmatch(text):
            number = len(self._results) + 1
            label = _describe_result(name, number, None)
            page = re.match(r'\{"url":"([^"\\]+)"', text)  # of a browser
            stored = {"url": page[1], "text": text} if page else text
            self._results.append(_Result(stored, number, action, source=label, arguments=as_text(arguments)))
            self.has_untrusted = True

    def _trust_arguments(self, arguments: Any) -> None:
        """Add what the model wrote before anybody but the user could have influenced it."""
        for _, value in find_leaves("", arguments):
            self.add_trusted(as_text(value))

    def _is_trusted_output(self, tool: Tool, capability: ToolCapability) -> bool:
        spec = tool.spec
        if spec.effects_of(capability).trusted_output:
            return True
        if not self.rules.trusted_output:
            return False
        names = (spec.tool_id, spec.model_name(capability))
        return any(fnmatchcase(name, pattern) for pattern in self.rules.trusted_output for name in names)

    def _are_trusted(self, arguments: Any) -> bool:
        """Return whether all words of the arguments are in trusted texts, so that a result cannot repeat others."""
        words = {word for _, value in find_leaves("", arguments) for word in re.findall(r"\w+", as_text(value))}
        return all(self._trusted.has(word) for word in words)

    # The question

    def find_untrusted_target(
        self, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any]
    ) -> UntrustedTarget | None:
        """Return the first value of a call that needs a person's approval because of its origin, if any."""
        if not self.has_untrusted or _is_file_of_workspace(tool, capability):
            return None
        roles = self._roles.roles_of(tool.spec, capability)
        takes_url = any(role.kind == "url" for role in roles.values())
        has_url = takes_url or any(map(_is_link, arguments.values()))
        is_reading = (
            _is_reading_action(tool, capability, roles)
            or _is_reading_request(tool, arguments)
            or (_is_browser(tool) and takes_url)  # it opens a page
        )
        has_fields = any(isinstance(value, (dict, list)) for value in arguments.values())  # which may be URLs
        if is_reading and not has_fields and not has_url:
            return None
        values = list(find_values(arguments, roles))
        if is_reading:
            sent = self._find_sent_value(values)
            return None if sent is None else self._explain(tool, capability, sent.parameter, sent.text)
        if _is_browser(tool):
            checked = [self._find_page(tool), *(replace(v, role=NAME_ROLE) for v in values if v.parameter == "text")]
        else:
            checked = [value for value in values if value.role.is_target]
            if not checked and not changes(tool.spec, capability):
                return None  # nothing says that it changes something
            checked = checked or find_names(values)
        toolset, words = _toolset_of(tool), frozenset(words_of(tool, capability))
        for value in checked:
            if not self._is_named(value, toolset, words):
                return self._explain(tool, capability, value.parameter, value.text)
        if checked and not any(value.role.kind in ("address", "id", "name", "url") for value in checked):
            return None  # it stays on this machine
        if not checked and not any(map(self._has_word, words)):
            return self._explain(tool, capability, "", "")
        return self._find_untrusted_link(tool, capability, values)

    def _find_sent_value(self, values: Sequence[ArgumentValue]) -> ArgumentValue | None:
        """Return the first value of a reading call that may carry data to a URL that the user has not named."""
        urls = [value for value in values if value.role.kind == "url" or _is_link(value.text)]
        for url in urls:
            if not self._may_read(url.text):
                return url
        if all(self._trusted.has_url(url.text) for url in urls):
            return None
        for value in values:
            is_sent = value.key != value.parameter or not _SENT_WORDS.isdisjoint(singular_words(value.parameter))
            if is_sent and value.key.lower() not in _PLAIN_HEADERS and not self._trusted.has(value.text):
                return value
        return None

    def _find_page(self, tool: Tool) -> ArgumentValue:
        """Return the page that a browser shows, which is what its actions work on."""
        pages = (
            result.output.get("url")
            for result in reversed(self._results)
            if result.action is not None and result.action[0].id == tool.id and isinstance(result.output, dict)
        )
        page = next((page for page in pages if isinstance(page, str)), "")
        return ArgumentValue("page", _PAGE, page)

    def _has_word(self, word: str) -> bool:
        return (
            len(word) > 2 and word not in _COMMON_WORDS and any(map(self._trusted.has, (word, f"{word}s", f"{word}es")))
        )

    def mark(self, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the arguments; as `UntrustedArguments` if the call has a target that the user did not name."""
        target = self.find_untrusted_target(tool, capability, arguments)
        return arguments if target is None else UntrustedArguments(arguments, target)

    def decide(
        self, decision: Decision, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any]
    ) -> Decision:
        """Return the decision of a policy, or a stricter one if the call has a target that the user did not name.

        What a rule or the list of approved actions of a server allows is allowed.
        """
        verdict = self.rules.untrusted_targets
        if not isinstance(arguments, UntrustedArguments) or decision.verdict != "allow" or verdict == "allow":
            return decision
        if decision.rule or capability.auto_approve:
            return decision
        return replace(decision, verdict=verdict, reason=arguments.target.reason, rule="untrusted_targets")

    def _find_untrusted_link(
        self, tool: Tool, capability: ToolCapability, values: Sequence[ArgumentValue]
    ) -> UntrustedTarget | None:
        """Return the first link or address in a content that the user did not name."""
        for value in values:
            if value.role.is_target:
                continue
            for address in EMAIL.findall(value.text):
                if not self._trusted.has_address(address):
                    return self._explain(tool, capability, value.parameter, address)
            for link in LINK.findall(EMAIL.sub(" ", value.text)):
                if not self._trusted.has_url(cut_link(link)):
                    return self._explain(tool, capability, value.parameter, link)
        return None

    def _explain(self, tool: Tool, capability: ToolCapability, parameter: str, value: str) -> UntrustedTarget:
        name, setting = tool.spec.model_name(capability), f"{UNTRUSTED_TARGETS} decides about such calls"
        # Never a part of a value: a secret that is cut is not recognised any more.
        excerpt = repr(value) if len(value) <= _MAX_EXCERPT else f"a text of {len(value)} characters"
        if not parameter:
            reason = f"{name} changes something, and the user has asked for no such thing ({setting})."
        elif not value:
            reason = f"{name} works on a {parameter} that the run does not know ({setting})."
        else:
            origin = self._find_origin(value)
            reason = f"{name} would use {excerpt} as {parameter}, which the user has not named ({origin}; {setting})."
        return UntrustedTarget(parameter=parameter, value=value, reason=reason)

    def describe(self, tool: Tool, capability: ToolCapability, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return where the value of each argument comes from, as a person reads it."""
        origins: dict[str, dict[str, None]] = {}
        values = find_values(arguments, self._roles.roles_of(tool.spec, capability))
        for value in islice(values, _MAX_DESCRIBED):
            origins.setdefault(value.parameter, {})[self._find_origin(value.text)] = None
        return {name: "; ".join(islice(each, _MAX_ORIGINS)) for name, each in origins.items()}

    def _find_origin(self, value: str) -> str:
        if self._trusted.has(value):
            return "from what the user wrote"
        text = normalize_text(value)
        for result in reversed(self._results):
            if text and text in result.read_text():
                return result.label
        return "in no text of the run: the model wrote it"

    # Whether the user has named a value

    def _is_named(self, value: ArgumentValue, toolset: Hashable, words: frozenset[str]) -> bool:
        text = value.text.strip()
        match value.role.kind:
            case "address":
                is_name = "@" not in text and sum(map(str.isdigit, text)) < SHORT_NUMBER
                if is_name and self._is_known_id(text, toolset, MEMBER_WORDS):
                    return True
                parts = filter(str.strip, re.split(r"[,;，；\n]", text)) if "@" in text else [text]
                return all(map(self._trusted.has_address, parts))
            case "page":
                return self._trusted.has_url(text)
            case "url":
                return self._trusted.has_url(text) and (not self._was_read(text) or any(map(self._has_word, words)))
            case "path":
                return self._trusted.has_path(text)
            case "account":
                return self._trusted.has(text) or self._trusted.has(text, spaced=True)
            case "id":
                return self._trusted.has_id(text, words | value.nouns) or self._is_known_id(text, toolset, value.nouns)
            case "name":
                return self._trusted.has(text.lstrip("#@"))
            case _:
                return self._trusted.has(text)

    def _was_read(self, url: str) -> bool:
        """Return whether a call has read from the host of a URL: that page may be what asks for this call."""
        host = split_url(url).hostname
        return host is not None and any(host in normalize_text(result.arguments) for result in self._results)

    def _is_known_id(self, text: str, toolset: Hashable, nouns: frozenset[str]) -> bool:
        """Return whether a tool of the same toolset has returned the id in a field for such ids.

        The id of a file is none of an email: a word of the parameter (`file_id`) is in the names of the fields, or of
        the tool, that the id comes from.
        """
        for result in self._results[self._indexed :]:
            if result.action is not None and result.is_structured:
                ids = self._ids.setdefault(_toolset_of(result.action[0]), {})
                for value, words in find_ids(result.output, frozenset(words_of(*result.action))):
                    ids.setdefault(value, set()).update(words)
        self._indexed = len(self._results)
        ids_of_toolset = self._ids.get(toolset, {})
        origin = ids_of_toolset.get(text) or ids_of_toolset.get(text.lstrip("#@"))
        return origin is not None and (not nouns or not nouns.isdisjoint(origin))

    def _may_read(self, url: str) -> bool:
        """Return whether reading a URL sends no data out: somebody else has written the URL, or it is made of words."""
        if self._trusted.has_url(url):
            return True
        parts = split_url(url)
        if not parts.hostname or parts.username is not None:
            return False
        labels, text = parts.hostname.split("."), normalize_text(url)
        domains = [".".join(labels[start:]) for start in range(max(1, len(labels) - 1))]
        is_known_host = False
        for result in reversed(self._results):
            if any(domain in result.read_text() for domain in domains):
                if result.has_link(text):
                    return True
                is_known_host = True
        return (
            not is_known_host
            and not parts.query
            and not parts.fragment
            and max(len(labels), len(re.findall(r"[^\W_]+", parts.path))) <= _MAX_FREE_WORDS
            and all(map(_PLAIN_SEGMENT.fullmatch, [*labels, *parts.path.split("/")]))
        )


def _describe_result(name: str, number: int, output: Any) -> str:
    """Return where a result comes from, as a person reads it."""
    url = output.get("url") if isinstance(output, dict) else None
    host = split_url(url).hostname if isinstance(url, str) and "://" in url else None
    step = f"{name} in step {number}"
    return f"from the page {host}, read by {step}" if host else f"from the result of {step}"


def _is_reading_request(tool: Tool, arguments: Mapping[str, Any]) -> bool:
    return (
        tool.source == "builtin"
        and tool.id == "http_request"
        and "url" in arguments
        and str(arguments.get("method", "")).upper() in _READING_METHODS
    )


def _is_skill(tool: Tool, capability: ToolCapability) -> bool:
    """Return whether an action shows the instructions of a skill: the user's files, and neither kind of text."""
    return tool.handler == "skill" and tool.spec.effects_of(capability).read_only


def _is_reading_action(tool: Tool, capability: ToolCapability, roles: Mapping[str, ParameterRole]) -> bool:
    """Return whether an action only reads. A name is believed less than a declaration: it must begin with reading, or
    the call must have no target that something could be sent to.
    """
    effects = tool.spec.effects_of(capability)
    if effects.read_only or effects.polling or effects.cacheable or not only_reads(tool.spec, capability):
        return only_reads(tool.spec, capability)
    kinds = {role.kind for name, role in roles.items() if role.is_target and name not in ("expression", "formula")}
    return "command" not in kinds and (kinds <= {"url"} or begins_with_reading(capability.name or tool.id))


def _is_link(value: Any) -> bool:
    return isinstance(value, str) and re.match(r"\s*(?:[A-Za-z][A-Za-z0-9+.-]{1,20}://|www\.)\S", value) is not None


def _is_browser(tool: Tool) -> bool:
    return tool.source != "mcps" and tool.id == "browser_navigator"


def _is_file_of_workspace(tool: Tool, capability: ToolCapability) -> bool:
    """Return whether a call makes or changes files of the workspace, and deletes none."""
    is_file_tool = tool.source == "builtin" and tool.id in ("file_processor", "list_workspace_files", "search_files")
    return is_file_tool and not capability.name.startswith(("delete", "remove"))


def _toolset_of(tool: Tool) -> Hashable:
    """Return what ids are valid in: a server, a tool with several actions, or all functions of a project."""
    return "functions" if tool.handler == "function" and tool.source == "tools" else (tool.source, tool.id)
