"""The roles of parameters: a *target* says whom, where or which, a *content* says what.

A tool declares the role of a parameter: `to: Annotated[str, Target()]` in Python, `role: target` in YAML, or the
configuration says it for tools of others. Otherwise it follows from the format, the name and the description of the
parameter. What a role was decided by is its `reason`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final, Literal, TypeAlias

from ferrule.catalog.tags import split_name
from ferrule.core.json_schema import properties_of
from ferrule.core.schema.hints import ROLE_KEYWORD
from ferrule.core.spec import ToolCapability, ToolSpec, ToolType

Role: TypeAlias = Literal["target", "content"]
TargetKind: TypeAlias = Literal["address", "url", "path", "account", "id", "command", "name", "page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRole:
    role: Role
    kind: TargetKind | None = None
    """Of a target: how its values are compared with what the user wrote."""
    is_label: bool = False
    """Whether the content is the name of what is made: in a call without any target, the name is the target."""
    is_choice: bool = False
    """Whether its values are a fixed set."""
    reason: str = ""

    @property
    def is_target(self) -> bool:
        return self.role == "target"


_KINDS_OF_FORMATS: Final[Mapping[str, TargetKind]] = {
    **dict.fromkeys(("email", "idn-email"), "address"),
    **dict.fromkeys(("uri", "url", "iri", "uri-reference", "hostname", "idn-hostname", "ipv4", "ipv6"), "url"),
    "uuid": "id",
    "path": "path",
    "file-path": "path",
}
_TARGET_WORDS: Final[Mapping[TargetKind, str]] = {
    "address": "address addresse attendee bcc cc email guest invitee mail mobile participant phone receiver recipient "
    "tel telephone to 收件人 邮箱 邮件地址 电子邮件 电话 手机 手机号 抄送 密送 参与者 参会人 接收人",
    "url": "callback domain endpoint host hostname href link site uri url webhook website 网址 链接 网站 域名 主机",
    "path": "attachment destination dest dir directory file filename filepath folder path 路径 文件 文件名 目录 文件夹",
    "account": "account beneficiary bic card credential iban number passcode password payee pin swift wallet 账号 账户 "
    "卡号 收款人 密码",
    "id": "assignee branch bucket channel chat group guid id identifier member owner project queue ref repo repository "
    "reviewer room table team user username uuid workspace 编号 标识 频道 群 群组 用户 用户名 仓库 项目 房间 表",
    "command": "cmd code command expression function javascript script shell sql statement 命令 脚本 代码",
    "name": "database server",
}
_CONTENT_WORDS: Final = frozenset(
    "amount body caption comment content count data date datetime day description duration encoding end format hour "
    "html language limit mark markdown message minute month mode note offset option page permission "
    "position price priority prompt quantity query reason size sort start status style summary text time timezone "
    "type unit value version week width year 内容 正文 文本 消息 描述 说明 备注 日期 时间 数量 金额 查询 状态".split()
)
_LABEL_WORDS: Final = frozenset("heading headline label name subject tag title topic 标题 主题 名称 名字 标签".split())
_KINDS_OF_WORDS: Final[Mapping[str, TargetKind]] = {
    word: kind for kind, words in _TARGET_WORDS.items() for word in words.split()
}
_WHICH: Final = re.compile(
    r"^\W*(?:the |a |an )?(?:unique )?(?:name|id|identifier|handle)s? of (?:the |a |an )?\w", re.I
)


class ParameterRoles:
    """Finds the roles of parameters. `declared` has roles by `tool.parameter` or `tool__action.parameter`, which may
    be patterns; these win over everything else.
    """

    def __init__(self, declared: Mapping[str, Role] | None = None) -> None:
        self._declared = dict(declared or {})
        self._roles_by_action: dict[int, tuple[ToolCapability, Mapping[str, ParameterRole]]] = {}

    def roles_of(self, spec: ToolSpec, capability: ToolCapability) -> Mapping[str, ParameterRole]:
        entry = self._roles_by_action.get(id(capability))
        if entry is None:
            roles = {
                name: self._find_role(spec, capability, name, schema if isinstance(schema, dict) else {})
                for name, schema in properties_of(capability.schema_or_empty).items()
            }
            entry = self._roles_by_action[id(capability)] = capability, roles
        return entry[1]

    def _find_role(
        self, spec: ToolSpec, capability: ToolCapability, name: str, schema: dict[str, Any]
    ) -> ParameterRole:
        names = (f"{spec.tool_id}.{name}", f"{spec.model_name(capability)}.{name}")
        for pattern, role in self._declared.items():
            if any(pattern == each or fnmatchcase(each, pattern) for each in names):
                return _declared_role(role, name, schema, f"declared in the configuration ({pattern})")
        # A server must not say that its recipient is none; the words of a program or a file of the user count.
        is_own = spec.tool_type is not ToolType.MCP_SERVER and capability.fills_defaults
        if schema.get(ROLE_KEYWORD) == "target" or (is_own and schema.get(ROLE_KEYWORD) == "content"):
            return _declared_role(schema[ROLE_KEYWORD], name, schema, "declared by the tool")
        return infer_role(name, schema, split_name(capability.name or spec.tool_id)[1:])


def infer_role(name: str, schema: Mapping[str, Any], action_words: tuple[str, ...] = ()) -> ParameterRole:
    """Return the role of a parameter of which nobody has declared one. `action_words` are those of the action's name,
    without the verb: `hotel` of `reserve_hotel`.
    """
    inner = _inner_schema(schema)
    if (kind := _KINDS_OF_FORMATS.get(str(inner.get("format")))) is not None:
        return ParameterRole(role="target", kind=kind, reason=f"its format is {inner['format']}")
    if inner.get("type") == "boolean" or "enum" in inner or "const" in inner:
        return ParameterRole(role="content", is_choice=True, reason="it has a fixed set of values")
    words = [singular(word) for word in split_name(name)]
    while len(words) > 1 and words[-1] in ("name", "value", "list", "string", "str"):
        words.pop()
    is_number = inner.get("type") in ("number", "integer")
    for word in reversed(words):
        if word in _CONTENT_WORDS:
            return ParameterRole(role="content", reason=f"its name says {word!r}")
        if word in _LABEL_WORDS and len(words) == 1:
            return ParameterRole(role="content", is_label=True, reason=f"its name says {word!r}")
        kind = _KINDS_OF_WORDS.get(word)
        if kind is not None and (not is_number or (kind in ("id", "account") and word != "number")):
            return ParameterRole(role="target", kind=kind, reason=f"its name says {word!r}")
        if word in action_words and not is_number:
            return ParameterRole(role="target", kind="name", reason=f"the name of the action says {word!r} too")
    if _WHICH.match(str(schema.get("description", ""))) and not is_number:
        return ParameterRole(role="target", kind="name", reason="its description says that it names something")
    return ParameterRole(role="content", reason="nothing says that it is a target")


def _declared_role(role: Role, name: str, schema: Mapping[str, Any], reason: str) -> ParameterRole:
    kind: TargetKind | None = None
    if role == "target":
        kind = infer_role(name, schema).kind or "name"
    return ParameterRole(role=role, kind=kind, reason=reason)


def _inner_schema(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of the values themselves: inside an array, and without `null`."""
    for keyword in ("anyOf", "oneOf"):
        options = [each for each in schema.get(keyword) or () if isinstance(each, dict) and each.get("type") != "null"]
        if len(options) == 1:
            return _inner_schema({**schema, **options[0], keyword: None})
    items = schema.get("items")
    return _inner_schema(items) if schema.get("type") == "array" and isinstance(items, dict) and items else schema


def singular(word: str) -> str:
    if word in ("address", "alias", "status", "bus", "class", "access", "process", "business"):
        return word
    return word[:-1] if word.endswith("s") and len(word) > 2 and not word.endswith("ss") else word
