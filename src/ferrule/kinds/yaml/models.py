"""The YAML tool file as pydantic models, and pydantic's errors as messages with line and hint.

The models check the shape of a file. Values whose text matters (`version: 1.10`, `007`) are taken from the document as
written. Schemas of parameters and outputs are read by `ferrule.kinds.yaml.schema_notation`.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from ferrule.core.names import did_you_mean
from ferrule.core.spec import Isolation, Placement, ToolCategory
from ferrule.kinds.yaml.reader import Document, Place, describe_place, describe_value, quoting_hint

USER_KEYS = "x-"
"""Keys that start like this belong to the user, for instance to define what `<<: *name` refers to."""


def _check_name(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("empty", "is empty")
    return value.strip()


def _check_scalar(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        raise PydanticCustomError("string_type", "must be text")
    return value


def _check_query_value(value: Any) -> Any:
    return value if isinstance(value, list) else _check_scalar(value)


def _check_number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PydanticCustomError("number", "a number")
    return value


Name = Annotated[str, AfterValidator(_check_name)]
Scalar = Annotated[Any, AfterValidator(_check_scalar)]
"""Text, or a number or boolean whose text as written is meant."""
Number = Annotated[Any, AfterValidator(_check_number)]
"""A number as written: pydantic would convert 10 to 10.0."""
Seconds = Annotated[Number, Field(gt=0, description="a number above 0")]
Price = Annotated[Number, Field(ge=0, lt=math.inf, description="a number from 0 on")]
"""Of one call."""


class YamlSection(BaseModel):
    """A mapping of the file. Keys without a value count as absent."""

    model_config = ConfigDict(extra="forbid", strict=True)
    unknown_key_hints: ClassVar[dict[str, str]] = {}
    """What to write instead of an unknown key; under "" for any other one."""

    @model_validator(mode="before")
    @classmethod
    def _remove_absent_keys(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        absent = {key for key in data if key.startswith(USER_KEYS) or (data[key] is None and key in cls.model_fields)}
        return {key: value for key, value in data.items() if key not in absent}


class EffectsSection(YamlSection):
    read_only: bool | None = None
    idempotent: bool | None = None
    destructive: bool | None = None
    cacheable: bool | None = None
    polling: bool | None = None
    trusted_output: bool | None = None
    cache_ttl: Seconds = None


class LimitsSection(YamlSection):
    timeout: Seconds = None
    bucket: str | None = None
    isolation: Isolation | None = None
    placement: Placement | None = None
    resources: dict[str, Annotated[float, Field(gt=0)]] | None = None
    max_output: Annotated[int | None, Field(gt=0, description="a whole number above 0")] = None


class _DescribedSection(YamlSection):
    """What a tool and an action have in common."""

    description: str = ""
    parameters: Any = None
    output: Any = None
    examples: list[dict[str, Any]] = []
    effects: EffectsSection | None = None
    limits: LimitsSection | None = None
    price: Price = None


class ActionSection(_DescribedSection):
    name: Annotated[Name, Field(examples=["search"])]


class ToolSection(_DescribedSection):
    unknown_key_hints: ClassVar[dict[str, str]] = {"": "put notes of your own under metadata"}

    name: Annotated[Name, Field(examples=["web_search"])]
    entry: Annotated[Any, Field(examples=["{type: builtin, handler: echo}"])]
    actions: list[ActionSection] = []
    aliases: list[str] = []
    version: Scalar = "1.0.0"
    category: Annotated[ToolCategory, Field(strict=False)] = ToolCategory.CUSTOM
    subcategory: str = "general"
    priority: Annotated[int, Field(description="a whole number")] = 1
    dependencies: list[str] = []
    tags: list[str] = []
    enabled: bool = True
    metadata: dict[str, Any] = {}


class EntryType(YamlSection):
    """Only the type of an entry, which determines the other keys."""

    model_config = ConfigDict(extra="ignore")
    type: Annotated[Literal["builtin", "external", "custom"], Field(examples=["builtin"])]


class BuiltinEntry(YamlSection):
    type: str
    handler: Annotated[Name, Field(examples=["echo"])]
    config: dict[str, Any] = {}


class CommandEntry(YamlSection):
    unknown_key_hints: ClassVar[dict[str, str]] = {"timeout": "set timeouts under limits"}

    type: str
    command: Any
    args: list[Any] = []
    cwd: str | None = None
    env: dict[str, Scalar] | None = None
    inherit_env: bool | None = None
    stdin: str | None = None
    stream: bool | None = None


class HttpEntry(YamlSection):
    type: str
    url: str
    method: str | None = None
    headers: dict[str, Scalar] | None = None
    query: dict[str, Annotated[Any, AfterValidator(_check_query_value)]] | None = None
    body: Any = None
    timeout: Seconds = None


class CustomEntry(YamlSection):
    type: str
    handler: Annotated[Name, Field(examples=["my_module:my_function"])]


class ParameterName(YamlSection):
    """Only the name of a parameter in a list of parameters."""

    model_config = ConfigDict(extra="ignore")
    name: Annotated[Name, Field(examples=["url"])]


class SchemaNotationSection(YamlSection):
    """A parameter, an output, or a schema in one of them: the keys that are not part of JSON Schema."""

    model_config = ConfigDict(extra="allow")
    description: str = ""
    secret: bool = False
    role: Literal["target", "content"] | None = None
    validation: dict[str, Any] = {}


S = TypeVar("S", bound=YamlSection)


def validate_section(model: type[S], value: Any, document: Document, place: Place = ()) -> S | None:
    """Read a value as a model. Return None, with all problems added to the document, when it does not fit."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        for details in error.errors(include_url=False):
            _report_error(model, details, document, place)
        return None


def _report_error(model: type[YamlSection], error: ErrorDetails, document: Document, place: Place) -> None:
    loc = error["loc"]
    at = (*place, *loc)
    key = str(loc[-1]) if loc and isinstance(loc[-1], str) else ""
    section = model  # of the mapping at that place
    for step in loc[:-1]:
        annotation = section.model_fields[step].annotation if step in section.model_fields else None
        inner = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
        section = next((each for each in inner if issubclass(each, YamlSection)), section)
    message, hint = _explain_error(section, key, error, document.texts.get(at))
    subject, where = describe_place(at) or "a tool", describe_place(at[:-1])
    if key:
        subject = f"{where}: {key}" if where else key
    if error["type"] == "extra_forbidden":
        subject = f"{where}: unknown key {key!r}" if where else f"unknown key {key!r}"
    document.problem(f"{subject} {message}".rstrip(), at[:-1] if error["type"] == "missing" else at, hint)


def _explain_error(
    section: type[YamlSection], key: str, error: ErrorDetails, text: str | None
) -> tuple[str, str | None]:
    """Return what is wrong, without its subject, and what to write."""
    value = error["input"]
    field = section.model_fields.get(key)
    match error["type"]:
        case "missing":
            example = field.examples[0] if field is not None and field.examples else "…"
            return "is missing", f"write for instance {key}: {example}"
        case "empty":
            return "is empty", f"write for instance {key}: {field.examples[0]}" if field and field.examples else None
        case "extra_forbidden":
            keys, hints = list(section.model_fields), section.unknown_key_hints
            hint = did_you_mean(key, keys).strip() or hints.get(key, hints.get(""))
            return "", hint or f"known here: {', '.join(keys)}"
        case "string_type":
            return f"must be text, not {describe_value(value)}", quoting_hint(text)
        case "bool_type":
            return f"must be true or false, not {describe_value(value)}", None
        case "list_type":
            is_scalar = isinstance(value, (str, int, float))
            return f"must be a list, not {describe_value(value)}", (
                f"write {key}: [{value}]" if is_scalar else "start each entry with '- '"
            )
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be a mapping, not {describe_value(value)}", "write it as lines of 'key: value'"
        case "enum" | "literal_error":
            allowed = re.findall(r"'([^']*)'", str(error.get("ctx", {}).get("expected", "")))
            near = did_you_mean(str(value), allowed).strip()
            return f"{value!r} is not known", f"{near} Allowed: {', '.join(allowed)}".strip()
    needs = field.description if field is not None and field.description else error["msg"]
    return f"must be {needs}, not {value!r}", None
