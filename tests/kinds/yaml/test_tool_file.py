"""YAML files of tools: the format, and the messages for invalid files."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule.core.spec import Effects, Limits, ToolCategory, ToolType
from ferrule.errors import LoadError, SetupError
from ferrule.kinds.source import LoadReport
from ferrule.kinds.yaml.tool_file import ToolConfigLoader

MANUAL = Path(__file__).parents[3] / "docs" / "yaml-tools.md"
SEED = Path(__file__).parents[4] / "shared" / "seeds" / "002-toolengine.md"

DOCUMENTED = """\
# tools/http_request.yaml
name: http_request
version: "1.0.0"
description: 发送 HTTP 请求并返回响应
category: http
tags:
  - network
  - api
  - request

# 参数定义
parameters:
  - name: url
    type: string
    required: true
    description: 请求 URL
    validation:
      pattern: "^https?://"

  - name: method
    type: string
    required: false
    default: "GET"
    description: HTTP 方法
    validation:
      enum: ["GET", "POST", "PUT", "DELETE", "PATCH"]

  - name: headers
    type: object
    required: false
    description: 请求头

  - name: body
    type: object
    required: false
    description: 请求体（POST/PUT/PATCH）

  - name: timeout
    type: number
    required: false
    default: 30
    description: 超时时间（秒）
    validation:
      min: 1
      max: 300

# 入口配置
entry:
  type: builtin          # builtin | external | custom
  handler: http_request  # 执行器名称

# 可选：输出定义
output:
  type: object
  properties:
    status_code: integer
    headers: object
    body: any
"""

ECHO = "entry: {type: builtin, handler: echo}\n"


def load(folder: Path, text: str | bytes, name: str = "tool.yaml") -> LoadReport:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    report = ToolConfigLoader().load_file(path)
    assert not any("the file cannot be loaded" in error.message for error in report.errors)  # we have thought of it
    return report


def schema_of(folder: Path, parameter: str) -> Any:
    """The JSON Schema of one parameter called x."""
    report = load(folder, f"name: t\nparameters:\n  - {{name: x, {parameter}}}\n{ECHO}")
    assert report.errors == ()
    return report.tools[0].spec.capabilities[0].schema["properties"]["x"]


def problems(folder: Path, text: str | bytes) -> list[str]:
    """`line: message (hint)` of every error."""
    report = load(folder, text)
    assert report.tools == ()
    assert all(error.path == folder / "tool.yaml" for error in report.errors)
    return [str(error).removeprefix(f"{error.path}:") for error in report.errors]


# The documented format


def test_the_documented_example_loads_as_it_is(tmp_path: Path):
    report = load(tmp_path, DOCUMENTED, "http_request.yaml")
    (tool,) = report.tools
    assert report.errors == () and tool.origin == f"{tmp_path / 'http_request.yaml'}:2"
    assert (tool.id, tool.handler, tool.source) == ("http_request", "http_request", "tools")
    spec = tool.spec
    assert (spec.tool_type, spec.category, spec.version) == (ToolType.BUILTIN, ToolCategory.HTTP, "1.0.0")
    assert (spec.tags, spec.description) == (["network", "api", "request"], "发送 HTTP 请求并返回响应")
    url, method, headers, body, timeout = spec.parameters
    assert (url.name, url.type, url.required, url.schema) == ("url", "string", True, {"pattern": "^https?://"})
    assert (method.default, method.required) == ("GET", False)
    assert method.schema == {"enum": ["GET", "POST", "PUT", "DELETE", "PATCH"]}
    assert (headers.type, body.description) == ("object", "请求体（POST/PUT/PATCH）")
    assert (timeout.type, timeout.default, timeout.schema) == ("number", 30, {"minimum": 1, "maximum": 300})
    assert spec.capabilities[0].output == {
        "type": "object",
        "properties": {"status_code": {"type": "integer"}, "headers": {"type": "object"}, "body": {}},
    }


@pytest.mark.skipif(not SEED.exists(), reason="the design documents are not here")
def test_the_example_in_the_design_document_loads_as_it_is(tmp_path: Path):
    text = SEED.read_text().partition("```yaml\n")[2].partition("```")[0]
    report = load(tmp_path, text)
    assert [tool.id for tool in report.tools] == ["http_request"]
    assert report.tools[0].spec == load(tmp_path, DOCUMENTED).tools[0].spec


def test_every_example_of_the_manual_loads(tmp_path: Path):
    for example in MANUAL.read_text().split("```yaml\n")[1:]:
        report = load(tmp_path, example.partition("```")[0])
        assert report.errors == () and len(report.tools) == 1, example


@pytest.mark.parametrize(
    ("parameter", "schema"),
    [
        ("type: string, validation: {min_length: 1, max_length: 9}", {"minLength": 1, "maxLength": 9}),
        ("type: string, validation: {pattern: '^a+$'}", {"pattern": "^a+$"}),
        ("type: string, validation: {enum: [a, b]}", {"enum": ["a", "b"]}),
        ("type: number, validation: {min: -1.5, max: 2}", {"minimum": -1.5, "maximum": 2}),
        ("type: integer, validation: {min: 0, max: 9}", {"minimum": 0, "maximum": 9}),
        ("type: boolean, default: yes", {"default": True}),
        (
            "type: array, validation: {items: integer, min_items: 1, max_items: 3}",
            {"items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        ),
        (
            "type: object, validation: {properties: {a: string}, required: [a]}",
            {"properties": {"a": {"type": "string"}}, "required": ["a"]},
        ),
        ("type: string, secret: true", {"writeOnly": True}),
    ],
)
def test_every_documented_option_becomes_json_schema(tmp_path: Path, parameter: str, schema: dict[str, Any]):
    kind = parameter.partition(": ")[2].partition(",")[0]
    assert schema_of(tmp_path, parameter) == {"type": kind, **schema}


def test_objects_and_arrays_nest_to_any_depth(tmp_path: Path):
    text = """
name: t
parameters:
  - name: orders
    type: array
    items:
      type: object
      properties:
        - {name: id, type: integer, required: true, validation: {min: 1}}
        - name: lines
          type: array
          items: {type: array, items: {type: object, properties: {sku: string, amount: {type: number, max: 5}}}}
"""
    (tool,) = load(tmp_path, text + ECHO).tools
    orders = tool.spec.capabilities[0].schema["properties"]["orders"]
    assert orders["items"]["required"] == ["id"]
    assert orders["items"]["properties"]["id"] == {"type": "integer", "minimum": 1}
    lines = orders["items"]["properties"]["lines"]
    assert lines["items"]["items"]["properties"]["amount"] == {"type": "number", "maximum": 5}


def test_words_of_json_schema_stand_beside_the_short_ones(tmp_path: Path):
    schemas = {
        "type: any, description: whatever": {"description": "whatever"},
        "anyOf: [{type: string, format: uri}, integer]": {
            "anyOf": [{"type": "string", "format": "uri"}, {"type": "integer"}]
        },
        "type: [string, 'null'], minLength: 2": {"type": ["string", "null"], "minLength": 2},
        "type: integer, required: true, default: null": {"type": "integer"},
        "type: any, default: null": {"default": None},
        "type: string, default: 12:30": {"type": "string", "default": "12:30"},
        "type: string, default: 2024-01-31": {"type": "string", "default": "2024-01-31"},
    }
    assert {parameter: schema_of(tmp_path, parameter) for parameter in schemas} == schemas


def test_a_required_parameter_with_a_default_is_optional(tmp_path: Path):
    (tool,) = load(
        tmp_path, f"name: t\nparameters: [{{name: x, type: integer, required: true, default: 5}}]\n{ECHO}"
    ).tools
    (parameter,) = tool.spec.parameters
    assert (parameter.required, parameter.has_default, parameter.default) == (False, True, 5)


@pytest.mark.parametrize(
    ("output", "schema"),
    [
        ("any", {}),
        ("string", {"type": "string"}),
        (
            "{count: integer, rows: {type: array, items: any}}",
            {"type": "object", "properties": {"count": {"type": "integer"}, "rows": {"type": "array", "items": {}}}},
        ),
        ("{type: array, items: {type: string}}", {"type": "array", "items": {"type": "string"}}),
    ],
)
def test_an_output_is_a_type_a_schema_or_a_list_of_members(tmp_path: Path, output: str, schema: dict[str, Any]):
    (tool,) = load(tmp_path, f"name: t\noutput: {output}\n{ECHO}").tools
    assert tool.spec.capabilities[0].output == schema


def test_effects_limits_examples_and_notes_belong_to_the_spec(tmp_path: Path):
    text = """
name: t
version: 1.10
effects: {read_only: true, cacheable: true, cache_ttl: 60}
limits: {timeout: 2.5, bucket: slow, isolation: thread, max_output: 1000}
examples: [{x: 1}]
enabled: false
metadata: {owner: Wang}
"""
    (tool,) = load(tmp_path, text + ECHO).tools
    assert tool.spec.effects == Effects(read_only=True, cacheable=True, cache_ttl=60)
    assert tool.spec.limits == Limits(timeout=2.5, bucket="slow", isolation="thread", max_output=1000)
    assert tool.spec.capabilities[0].examples == [{"x": 1}]
    assert (tool.spec.version, tool.spec.enabled, tool.spec.metadata) == ("1.10", False, {"owner": "Wang"})
    assert tool.spec.category is ToolCategory.CUSTOM


def test_a_tool_may_have_several_actions(tmp_path: Path):
    text = """
name: notes
limits: {timeout: 5, bucket: files}
actions:
  - {name: read, parameters: [{name: id, type: string, required: true}], effects: {read_only: true}}
  - {name: write, description: Write one, limits: {timeout: 9}, output: boolean}
"""
    (tool,) = load(tmp_path, text + ECHO).tools
    read, write = tool.spec.capabilities
    assert (read.name, read.schema["required"], read.effects) == ("read", ["id"], Effects(read_only=True))
    assert (write.description, write.output, write.effects) == ("Write one", {"type": "boolean"}, None)
    assert write.limits == Limits(timeout=9, bucket="files")


def test_a_file_may_hold_several_tools(tmp_path: Path):
    report = load(tmp_path, f"name: a\n{ECHO}---\nname: b\n{ECHO}---\n# nothing more\n")
    assert [(tool.id, tool.origin.rpartition(":")[2]) for tool in report.tools] == [("a", "1"), ("b", "4")]


def test_anchors_and_merges_work(tmp_path: Path):
    text = """
x-common: &common {type: string, validation: {max_length: 5}}
name: t
parameters:
  - {<<: *common, name: a}
  - {<<: *common, name: b, type: integer, validation: {max: 3}}
"""
    (tool,) = load(tmp_path, text + ECHO).tools
    a, b = tool.spec.capabilities[0].schema["properties"].values()
    assert (a, b) == ({"type": "string", "maxLength": 5}, {"type": "integer", "maximum": 3})


def test_chinese_names_and_a_byte_order_mark_are_fine(tmp_path: Path):
    text = f"name: 网页导航器\ndescription: 打开网页\nparameters: [{{name: 网址, type: string}}]\n{ECHO}"
    (tool,) = load(tmp_path, b"\xef\xbb\xbf" + text.encode(), "工具.yaml").tools
    assert (tool.id, tool.spec.description) == ("网页导航器", "打开网页")
    assert list(tool.spec.capabilities[0].schema["properties"]) == ["网址"]


# Entries


def test_a_command_becomes_a_list_of_words(tmp_path: Path):
    text = """
name: search
parameters: [{name: pattern, type: string}, {name: limit, type: integer}]
entry:
  type: external
  command: grep -r "two words"
  args: ["{pattern}", 007, ["--max-count", "{limit}"]]
  cwd: /data
  env: {TOKEN: "${API_TOKEN}", LEVEL: 1.0}
"""
    (tool,) = load(tmp_path, text).tools
    assert (tool.handler, tool.spec.tool_type) == ("command", ToolType.COMMAND)
    assert tool.spec.implementation_config == {
        "command": ["grep", "-r", "two words", "{pattern}", "007", ["--max-count", "{limit}"]],
        "cwd": "/data",
        "env": {"TOKEN": "${API_TOKEN}", "LEVEL": "1.0"},
    }


def test_an_endpoint_keeps_its_variables_and_placeholders(tmp_path: Path):
    text = """
name: user
parameters: [{name: id, type: integer, required: true}]
entry:
  type: external
  url: https://api.example.com/users/{id}
  method: post
  headers: {Authorization: "Bearer ${TOKEN:-none}", X-Version: 1.10}
  query: {tag: [a, b], page: 1}
  body: {deep: {id: "{id}"}}
  timeout: 5
"""
    (tool,) = load(tmp_path, text).tools
    assert (tool.handler, tool.spec.tool_type) == ("http", ToolType.HTTP)
    assert tool.spec.implementation_config == {
        "url": "https://api.example.com/users/{id}",
        "method": "POST",
        "headers": {"Authorization": "Bearer ${TOKEN:-none}", "X-Version": "1.10"},
        "query": {"tag": ["a", "b"], "page": "1"},
        "body": {"deep": {"id": "{id}"}},
        "timeout": 5,
    }


def test_a_custom_handler_is_imported_when_it_is_first_used(tmp_path: Path):
    (tool,) = load(tmp_path, "name: j\nentry: {type: custom, handler: 'json:dumps'}\n").tools
    assert (tool.handler, tool.spec.tool_type) == ("function", ToolType.FUNCTION)
    assert tool.spec.implementation_config == {"handler": "json:dumps"}
    assert tool.target.function("j")([1]) == "[1]"


def test_a_custom_handler_is_also_found_next_to_the_file(tmp_path: Path):
    (tool,) = load(tmp_path, "name: s\nentry: {type: custom, handler: 'own_shop:Shop.price'}\n").tools
    (tmp_path / "own_shop.py").write_text("class Shop:\n    def price(self):\n        return 7\n")
    assert tool.target.function("s")() == 7


def test_the_actions_of_a_custom_class_are_its_methods(tmp_path: Path):
    (tmp_path / "own_counter.py").write_text(
        "class Counter:\n    n = 0\n    def up(self):\n        self.n += 1\n        return self.n\n"
    )
    text = "name: c\nactions: [{name: up}]\nentry: {type: custom, handler: 'own_counter:Counter'}\n"
    (tool,) = load(tmp_path, text).tools
    assert [tool.target.function("up")(), tool.target.function("up")()] == [1, 2]


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        ("no_such_module_at_all:f", "no module 'no_such_module_at_all' can be found (install it, or put"),
        ("json:dumpz", "'json' has no 'dumpz'"),
        ("math:pi", "it is float, not a function"),
        ("own_db:Db.get", "creating a Db failed with TypeError: Db.__init__() missing 1 required positional argument"),
    ],
)
def test_a_custom_handler_that_cannot_be_found_says_why(tmp_path: Path, handler: str, message: str):
    (tmp_path / "own_db.py").write_text("class Db:\n    def __init__(self, url): ...\n    def get(self): ...\n")
    (tool,) = load(tmp_path, f"name: t\nentry:\n  type: custom\n  handler: {handler}\n").tools
    with pytest.raises(LoadError) as caught:
        tool.target.function("t")
    assert message in str(caught.value)
    assert (caught.value.path, caught.value.line) == (tmp_path / "tool.yaml", 4)


# What is wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"name: t\nparametres: []\n{ECHO}", "2: unknown key 'parametres' (Did you mean 'parameters'?)"),
        (f"name: t\nauthor: me\n{ECHO}", "2: unknown key 'author' (put notes of your own under metadata)"),
        (ECHO, "1: name is missing (write for instance name: web_search)"),
        (f"name: ' '\n{ECHO}", "1: name is empty (write for instance name: web_search)"),
        (f"name: 5\n{ECHO}", '1: name must be text, not the number 5 (put it in quotes: "5")'),
        (
            "name: t\n",
            "1: entry is missing (write for instance entry: {type: builtin, handler: echo})",
        ),
        (
            f"name: t\ncategory: databse\n{ECHO}",
            "2: category 'databse' is not known (Did you mean 'database'? Allowed: http, database,",
        ),
        (f"name: t\ntags: web\n{ECHO}", "2: tags must be a list, not text (write tags: [web])"),
        (f"name: t\ntags: [a, 1]\n{ECHO}", '2: tags[1] must be text, not the number 1 (put it in quotes: "1")'),
        (f"name: t\nenabled: perhaps\n{ECHO}", "2: enabled must be true or false, not text"),
        (
            f"name: t\nname: u\n{ECHO}",
            "2: the key 'name' is written twice (the first is in line 1: keep one of them)",
        ),
        ("- a\n", "1: a tool must be a mapping, not a list (write it as lines of 'key: value')"),
        ("", "1: the file is empty (describe a tool in it, or delete it)"),
        ("# only a comment\n", "1: the file is empty (describe a tool in it, or delete it)"),
        (f"name: t\nmetadata: {{n: .nan}}\n{ECHO}", "2: .nan is not a number in JSON (leave it out)"),
        (f"name: t\n? [a]\n: b\n{ECHO}", "1: a key must be a word, not a list or a mapping"),
    ],
)
def test_a_wrong_key_or_value_says_where_and_what_to_write(tmp_path: Path, text: str, expected: str):
    (problem,) = problems(tmp_path, text)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("parameter", "expected"),
    [
        ("name: x, type: int", "3: parameters[0].type: unknown type 'int' (write integer)"),
        ("name: x, type: str", "3: parameters[0].type: unknown type 'str' (write string)"),
        ("name: x, type: strng", "3: parameters[0].type: unknown type 'strng' (Did you mean 'string'?)"),
        ("name: x", "3: parameters[0]: type is missing (write for instance type: string)"),
        ("type: string", "3: parameters[0]: name is missing (write for instance name: url)"),
        ("name: x, type: string, requird: true", "3: parameters[0]: unknown key 'requird' (Did you mean 'required'?)"),
        (
            "name: x, type: string, validation: {min: 3}",
            "3: parameters[0].validation: min has no meaning for a value of type string "
            "(use min_length or max_length or pattern or enum)",
        ),
        (
            "name: x, type: string, items: string",
            "3: parameters[0]: items has no meaning for a value of type string "
            "(use min_length or max_length or pattern or enum)",
        ),
        (
            "name: x, type: string, validation: {pattern: '('}",
            '3: parameters[0].validation: pattern is not valid: "(" is not a "regex"',
        ),
        (
            "name: x, type: string, validation: {enum: [a, no]}",
            '3: parameters[0].validation.enum[1]: false is not of type string (put it in quotes: "no")',
        ),
        (
            "name: x, type: string, default: 30",
            "3: parameters[0]: the default does not fit the parameter itself: "
            '30 is not of type "string" (put it in quotes: "30")',
        ),
        (
            "name: x, type: integer, default: 9, validation: {max: 5}",
            "3: parameters[0]: the default does not fit the parameter itself: 9 is greater than the maximum of 5",
        ),
        (
            "name: x, type: integer, validation: {min: 9, max: 5}",
            "3: parameters[0]: minimum 9 is more than maximum 5: no value fits",
        ),
        (
            "name: x, type: string, validation: {min_length: -1}",
            "3: parameters[0].validation: min_length is not valid: -1 is less than the minimum of 0",
        ),
        (
            "name: x, type: object, properties: {city: string}, required: [cty]",
            "3: parameters[0]: required names 'cty', which is not among the properties (Did you mean 'city'?)",
        ),
        (
            "name: x, $ref: 'https://example.com/s.json'",
            "3: parameters[0]: $ref 'https://example.com/s.json' points out of the file (copy the schema to here)",
        ),
        (
            "name: x, type: array, items: {type: object, properties: {y: {type: float}}}",
            "3: parameters[0].items.properties.y.type: unknown type 'float' (write number)",
        ),
        (
            "name: x, type: object, minProperties: a",
            '3: parameters[0]: minProperties is not valid: "a" is not of type "integer"',
        ),
    ],
)
def test_a_wrong_parameter_says_where_and_what_to_write(tmp_path: Path, parameter: str, expected: str):
    (problem,) = problems(tmp_path, f"name: t\nparameters:\n  - {{{parameter}}}\n{ECHO}")
    assert problem.startswith(expected)


def test_two_parameters_of_one_name_are_reported_with_both_lines(tmp_path: Path):
    text = f"name: t\nparameters:\n  - {{name: x, type: string}}\n  - {{name: x, type: integer}}\n{ECHO}"
    assert problems(tmp_path, text) == [
        "4: parameters[1]: there are two parameters 'x' (the first is in line 3: rename one)"
    ]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{type: bultin, handler: x}", "type 'bultin' is not known (Did you mean 'builtin'? Allowed: builtin,"),
        ("{type: builtin}", "handler is missing (write for instance handler: echo)"),
        ("{handler: x}", "type is missing (write for instance type: builtin)"),
        ("{type: builtin, hander: x, handler: y}", "unknown key 'hander' (Did you mean 'handler'?)"),
        ("{type: external}", "an external entry has either a command or a url"),
        ("{type: external, command: []}", "the command names no program (write command: [program, argument])"),
        ("{type: external, command: 'ls | wc'}", "no shell reads the command: '|' would be an argument"),
        ("{type: external, command: 'echo \"a'}", "the command cannot be split into words: No closing quotation"),
        ("{type: external, command: [ls, '{fil}']}", "{fil} is none of the tool's parameters (Did you mean 'file'?"),
        ("{type: external, command: ['{file}']}", "the program '{file}' cannot be chosen by a call (name it)"),
        ("{type: external, command: [bash, -ce, 'wc {file}']}", "a {param} inside the script 'wc {file}' would be run"),
        ("{type: external, command: python -c, args: ['{file}']}", "a {param} inside the script '{file}' would be run"),
        ("{type: external, command: [ls], timeout: 3}", "unknown key 'timeout' (set timeouts under limits)"),
        ("{type: external, url: example.com}", "the url 'example.com' names no web server (it starts with https://"),
        ("{type: external, url: 'http://x', method: GTE}", "method 'GTE' is not known (allowed: GET, POST,"),
        ("{type: custom, handler: a.b.c}", "handler 'a.b.c' is not of the form module:callable (write a.b:c)"),
    ],
)
def test_a_wrong_entry_says_where_and_what_to_write(tmp_path: Path, entry: str, expected: str):
    (problem,) = problems(tmp_path, f"name: t\nparameters: [{{name: file, type: string}}]\nentry: {entry}\n")
    assert problem.startswith(f"3: entry: {expected}")


def test_all_problems_of_a_file_are_reported_together_in_order(tmp_path: Path):
    text = f"""\
name: t
catgory: http
parameters:
  - name: a
    type: int
  - name: b
    type: string
    default: 3
limits: {{timeout: -1}}
{ECHO}---
name: u
"""
    assert [int(problem.partition(":")[0]) for problem in problems(tmp_path, text)] == [2, 5, 8, 9, 12]


def test_what_is_no_decent_yaml_is_refused(tmp_path: Path):
    texts = {
        b"name: t\nx:\n\t- y\n": "3: not YAML: found character that cannot start any token (indent with spaces",
        b"name: a: b\n": "1: not YAML: mapping values are not allowed in this context (put text that contains ': '",
        b"name: [": "1: not YAML: did not find expected node content",
        b"name: 'abc\nx: y\n": "2: not YAML: while scanning a quoted scalar in line 1: found unexpected end",
        b"name: t\ndescription: \xe9\n": "2: the file is not UTF-8 (save it as UTF-8)",
        "name: 网页导航器\nx: \x07\n\n\n\n".encode(): "2: a character that text cannot contain (delete it)",
        b"#" * 1_000_001: "1: the file is larger than 1,000,000 bytes (split it into several files)",
        b"name: &a [*a]\n": "1: an alias that contains itself (write the value out)",
        b"name: &a {<<: *a}\n": "1: an alias that contains itself (write the value out)",
        b"<<: &a {<<: *a}\n": "1: an alias that contains itself (write the value out)",
        b"name: t\nx: " + b"[" * 500_000: "2: nested deeper than 64 levels",
        b"name: !!python/object/apply:os.getcwd []\n": "1: a value of kind !!python/object/apply:os.getcwd cannot be",
    }
    for text, expected in texts.items():
        assert problems(tmp_path, text)[0].startswith(expected), text[:50]


def test_a_tag_that_does_not_fit_its_value_is_refused(tmp_path: Path):
    for tagged in ('!!int ""', '!!float ""', "!!int '-'", "!!int _", "!!bool x", "!!map x", "!!seq {}"):
        (problem,) = problems(tmp_path, f"name: t\nmetadata: {{a: {tagged}}}\n{ECHO}")
        assert problem.startswith("2: a value of kind !!"), tagged


def test_only_mappings_can_be_merged(tmp_path: Path):
    for base in ('!!map "x"', '!!seq "abc"', "!!map [1]", "!!seq {a: 1}", "[1]", "x", "[[{}]]"):
        (problem,) = problems(tmp_path, f"name: t\nmetadata: {{<<: {base}}}\n{ECHO}")
        assert problem == "2: '<<' takes a mapping, or a list of mappings", base


def test_a_number_json_does_not_know_is_refused(tmp_path: Path):
    for number in (f"0x{'f' * 5000}", "-0b1" + "0" * 2000, "1.0e+999", ".nan"):
        (problem,) = problems(tmp_path, f"name: t\nmetadata: {{a: {number}}}\n{ECHO}")
        assert "is not a number in JSON (leave it out)" in problem and len(problem) < 100


def test_merges_that_multiply_are_refused(tmp_path: Path):
    keys = "".join(f"  k{n}: 1\n" for n in range(9000))
    text = f"name: t\nx-a: &a\n{keys}metadata:\n  <<: [{', '.join(['*a'] * 15_000)}]\n{ECHO}"
    assert "more than 100000 values with its aliases expanded (use fewer aliases)" in problems(tmp_path, text)[0]


@pytest.mark.parametrize("link", ["<<", "k"])
def test_long_chains_of_aliases_are_refused(tmp_path: Path, link: str):
    chain = [f"x-{n}: &a{n} {{{link}: *a{n - 1}}}" for n in range(1, 2000)]
    text = "\n".join(["name: t", "x-0: &a0 {k: 1}", *chain])
    assert "nested deeper than 64 levels (use fewer aliases)" in problems(tmp_path, text)[0]


def test_aliases_that_multiply_are_refused(tmp_path: Path):
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for name, below in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{below}'] * 9)}]")
    assert (
        "more than 100000 values with its aliases expanded (use fewer aliases)"
        in problems(tmp_path, "\n".join(lines))[0]
    )


@given(text=st.text() | st.binary())
def test_no_content_whatsoever_makes_loading_raise(tmp_path: Path, text: str | bytes):
    content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    report = load(tmp_path, content)
    assert report.errors and not report.tools


_KEYS = st.sampled_from(DOCUMENTED.split()) | st.sampled_from(["items", "$ref", "properties", "command", "url", "args"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | _KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS.map(lambda k: k.rstrip(":")), inner, max_size=4),
    max_leaves=12,
)


@given(values=st.fixed_dictionaries({}, optional={key: _VALUES for key in ["name", "parameters", "entry", "output"]}))
def test_no_shape_of_a_tool_makes_loading_raise(tmp_path: Path, values: dict[str, Any]):
    import yaml

    report = load(tmp_path, yaml.safe_dump(values, allow_unicode=True).encode("utf-8", "surrogatepass"))
    assert bool(report.errors) != bool(report.tools)


# Folders


def test_a_bad_file_never_stops_the_others(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(f"name: a\n{ECHO}")
    (tmp_path / "b.yaml").write_text("name: [")
    (tmp_path / "c.yml").write_text(f"name: c\n{ECHO}")
    report = ToolConfigLoader(tmp_path).load()
    assert [tool.id for tool in report.tools] == ["a", "c"]
    assert [error.path for error in report.errors] == [tmp_path / "b.yaml"]
    assert report.files == (tmp_path / "a.yaml", tmp_path / "b.yaml", tmp_path / "c.yml")


def test_a_name_twice_in_a_folder_keeps_the_first_and_names_both(tmp_path: Path):
    (tmp_path / "a.yaml").write_text(f"name: same\nversion: first\n{ECHO}")
    (tmp_path / "b.yaml").write_text(f"# a comment\nname: same\n{ECHO}")
    report = ToolConfigLoader().load(tmp_path)
    assert [tool.spec.version for tool in report.tools] == ["first"]
    assert [str(error) for error in report.errors] == [
        f"{tmp_path / 'b.yaml'}:2: there is a tool 'same' already, at {tmp_path / 'a.yaml'}:1; "
        "this one is ignored (rename one of them)"
    ]


def test_folders_are_read_one_level_deep_and_hidden_files_never(tmp_path: Path):
    for name in ["top.yaml", "group/in.yaml", "group/deep/er.yaml", "_off/x.yaml", ".git/x.yaml", "_x.yaml", ".y.yaml"]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"name: {name}\n{ECHO}")
    report = ToolConfigLoader(tmp_path).load()
    assert [tool.id for tool in report.tools] == ["group/in.yaml", "top.yaml"]


def test_a_folder_that_is_not_there_is_an_error_when_it_was_asked_for(tmp_path: Path):
    report = ToolConfigLoader().load(tmp_path / "tols")
    assert [str(error) for error in report.errors] == [f"{tmp_path / 'tols'}:1: there is no such folder"]
    with pytest.raises(SetupError, match="No folder was given"):
        ToolConfigLoader().load()


def test_a_tool_may_say_where_it_stands_among_others(tmp_path: Path):
    text = "name: report\ncategory: file\nentry: {type: builtin, handler: echo}\n"
    (tmp_path / "good.yaml").write_text(f"{text}subcategory: pdf\npriority: -2\ndependencies: [search, 邮件]\n")
    (tmp_path / "bad.yaml").write_text(f"{text}priority: high\ndependencies: search\n")
    [tool] = ToolConfigLoader().load_file(tmp_path / "good.yaml").tools
    assert (tool.spec.subcategory, tool.spec.priority, tool.spec.dependencies) == ("pdf", -2, ["search", "邮件"])
    errors = [error.message for error in ToolConfigLoader().load_file(tmp_path / "bad.yaml").errors]
    assert errors == ["priority must be a whole number, not 'high'", "dependencies must be a list, not text"]


def test_a_schema_that_is_too_costly_to_check_is_reported(tmp_path: Path):
    place = "#/properties/x/$defs"
    inner: dict[str, Any] = {"l0": {"type": "string"}}
    for level in range(1, 13):
        inner[f"l{level}"] = {"anyOf": [{"$ref": f"{place}/l{level - 1}"}] * 10}
    parameters = {"x": {"$ref": f"{place}/l12", "$defs": inner}}
    [problem] = problems(tmp_path, f"name: t\nparameters: {json.dumps(parameters)}\n{ECHO}")
    assert "too costly to check" in problem


def test_a_pipe_is_refused_instead_of_waited_for(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe.yaml")
    [error] = ToolConfigLoader().load_file(tmp_path / "pipe.yaml").errors
    assert error.message == "the file cannot be read: it is a folder, a pipe or a device"
