"""A tool in plain words, as an agent reads it."""

from __future__ import annotations

from typing import Any

from ferrule.content import as_text, copy_json
from ferrule.describe.example import example_of
from ferrule.describe.readable import list_under, required_by, schema_of
from ferrule.describe.sentences import first_sentence, on_one_line
from ferrule.describe.wording import Wording
from ferrule.spec import JsonSchema, ToolCapability, ToolSpec
from ferrule.validation.schema_walk import properties_of, resolve, types_of

_MOST_CHOICES = 12
_DEEPEST = 4


def full_text(spec: ToolSpec, words: Wording) -> str:
    """Everything about a tool: what it is, its actions with parameters and examples, when to use it."""
    description = spec.description or _description_of_only_action(spec)
    tags = ", ".join(spec.tags) or words.none
    lines = [
        f"{words.tool}: {spec.name} (ID: {spec.tool_id})",
        f"{words.type}: {spec.tool_type.value}",
        f"{words.description}: {_indented(description, '  ') or words.none}",
        f"{words.tags}: {tags}",
        "",
        f"{words.actions}:",
        *(_action(spec, capability, words) for capability in spec.capabilities),
    ]
    if not spec.capabilities:
        lines.append(f"  {words.none}")
    if description:
        lines += ["", f"{words.when_to_use}: {words.purpose.format(does=_does(description))}"]
    return "\n".join(lines)


def one_line(spec: ToolSpec, words: Wording) -> str:
    """A tool's name and the first sentence about it."""
    sentence = first_sentence(spec.description or _description_of_only_action(spec))
    count = len(spec.capabilities)
    several = words.actions_of.format(count=count) if count > 1 else ""
    return f"- {spec.tool_id}{several}" + (f": {sentence}" if sentence else "")


def examples_of(capability: ToolCapability) -> list[dict[str, Any]]:
    """The arguments its author gave as examples; if there are none, some that fit its parameters."""
    if capability.examples:
        return [copy_json(example) for example in capability.examples]
    made = example_of(schema_of(capability))
    return [] if made is None else [made]


def _action(spec: ToolSpec, capability: ToolCapability, words: Wording) -> str:
    said = "" if capability.description == spec.description else _indented(capability.description, "    ")
    examples = examples_of(capability)
    return "\n".join(
        (
            f"  - {capability.name}" + (f": {said}" if said else ""),
            f"    {words.parameters}: {_parameters(schema_of(capability), words)}",
            f"    {words.example}: {as_text(examples[0]) if examples else 'N/A'}",
        )
    )


def _parameters(schema: JsonSchema, words: Wording) -> str:
    whole = resolve(schema, schema)
    required = required_by(whole)
    said = []
    for name, inner in properties_of(whole).items():
        parameter = resolve(inner, schema)
        facts = [_type(parameter, schema), words.required if name in required else words.optional]
        if parameter.get("default") is not None:
            facts[-1] = words.default.format(value=as_text(parameter["default"]))
        description = on_one_line(str(parameter.get("description") or ""))
        said.append(f"{name} ({', '.join(filter(None, facts))})" + (f": {description}" if description else ""))
    return "; ".join(said) or words.none


def _type(said: Any, root: JsonSchema, depth: int = 0) -> str:
    schema = resolve(said, root) if depth < _DEEPEST else {}
    choices = list_under("enum", schema) or ([schema["const"]] if "const" in schema else [])
    if choices:
        shown = " | ".join(as_text(choice) for choice in choices[:_MOST_CHOICES])
        return shown if len(choices) <= _MOST_CHOICES else f"{shown} | …"
    listed = [option for word in ("anyOf", "oneOf") for option in list_under(word, schema)]
    options = [_type(option, root, depth + 1) for option in listed[:_MOST_CHOICES]]
    if any(options):
        more = ["…"] if len(listed) > _MOST_CHOICES else []
        return " | ".join(dict.fromkeys([*filter(None, options), *more]))
    item = _type(schema.get("items"), root, depth + 1) if types_of(schema) == ["array"] else ""
    return f"array of {item}" if item else " | ".join(types_of(schema))


def _does(description: str) -> str:
    """The first sentence about a tool as the middle of another sentence."""
    sentence = first_sentence(description).rstrip(".。!！ ")
    is_word = len(sentence) > 1 and not sentence[1].isupper()
    return sentence[:1].lower() + sentence[1:] if is_word else sentence


def _description_of_only_action(spec: ToolSpec) -> str:
    return spec.capabilities[0].description if len(spec.capabilities) == 1 else ""


def _indented(text: str, indent: str) -> str:
    return f"\n{indent}".join(text.strip().splitlines())
