"""YAML text as plain values, with the line of each.

A `Document` has values that JSON has too (mappings with text keys, lists, text, numbers, booleans, None) and, for
every place in it, the line and the text as written. Only the safe scalar types are constructed: other tags are errors.
Two surprises of YAML 1.1 are left out: `12:30` is text and not 750, and dates are text.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ferrule.errors import LoadError

if TYPE_CHECKING:
    import yaml

Place: TypeAlias = tuple[str | int, ...]
"""Keys and positions from the top of a document to a value."""

MAX_DEPTH = 64
MAX_VALUES = 100_000
"""With aliases expanded: a few lines of YAML could otherwise be billions of values."""

_TAG_PREFIX = "tag:yaml.org,2002:"
_TEXT_TAGS = (f"{_TAG_PREFIX}str", f"{_TAG_PREFIX}timestamp")


@dataclass(slots=True, kw_only=True)
class Document:
    """One document of a file, and what is wrong with it."""

    path: Path
    value: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    texts: dict[Place, str] = field(default_factory=dict)
    """Scalars as they are written: `1.10` where the value is 1.1."""
    errors: list[LoadError] = field(default_factory=list)

    def line(self, place: Place) -> int:
        """Return the line of a value or, when it is missing, of the mapping it is missing from."""
        while place not in self.lines and place:
            place = place[:-1]
        return self.lines.get(place, 1)

    def problem(self, message: str, place: Place, hint: str | None = None) -> None:
        self.errors.append(LoadError(message, path=self.path, line=self.line(place), hint=hint))


def describe_place(place: Place) -> str:
    """Return `parameters[0].validation` for `("parameters", 0, "validation")`."""
    text = ""
    for step in place:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def describe_value(value: Any) -> str:
    """Describe a value in messages: `a list`, `true or false`, `the number 5`."""
    kinds = {bool: "true or false", str: "text", list: "a list", dict: "a mapping", type(None): "nothing"}
    return kinds.get(type(value)) or f"the number {value}"


def quoting_hint(text: str | None) -> str | None:
    return None if text is None else f'put it in quotes: "{text}"'


def read_documents(content: bytes, path: Path, *, max_values: int = MAX_VALUES) -> list[Document]:
    """Read the documents of a file. Raises LoadError when the content is not YAML."""
    import yaml

    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise LoadError("the file is not UTF-8", path=path, line=line, hint="save it as UTF-8") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _refuse_deep_nesting(text, loader, path)
        documents = []
        for root in yaml.compose_all(text, Loader=loader):
            if root.value == "" and root.tag == f"{_TAG_PREFIX}null":  # a document without content
                continue
            document = Document(path=path, lines={(): root.start_mark.line + 1})
            document.value = _DocumentReader(document, max_values).value(root, ())
            documents.append(document)
    except yaml.YAMLError as error:
        raise _convert_yaml_error(error, text, path) from None
    if not documents:
        raise LoadError("the file is empty", path=path, hint="describe a tool in it, or delete it")
    return documents


def _refuse_deep_nesting(text: str, loader: Any, path: Path) -> None:
    # The composers are recursive; the one written in C would overflow the stack and kill Python.
    import yaml

    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                line = event.start_mark.line + 1 if event.start_mark else None
                raise LoadError(f"nested deeper than {MAX_DEPTH} levels", path=path, line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _DocumentReader:
    """Converter of the nodes of one document to values."""

    def __init__(self, document: Document, max_values: int) -> None:
        self._document, self._max_values = document, max_values
        self._open: set[int] = set()
        self._count = 0

    def value(self, node: yaml.Node, place: Place) -> Any:
        import yaml

        self._count_one(node)
        self._document.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.ScalarNode):
            self._document.texts[place] = node.value
            return self._scalar(node, place)
        with self._enter_node(node):
            if _is_mapping_node(node):
                return self._mapping(node, place)
            if _is_sequence_node(node):
                return [self.value(item, (*place, index)) for index, item in enumerate(node.value)]
        return self._wrong_tag(node, place)

    @contextmanager
    def _enter_node(self, node: yaml.Node) -> Iterator[None]:
        if id(node) in self._open:
            raise self._make_error(node, "an alias that contains itself", "write the value out")
        if len(self._open) >= MAX_DEPTH:
            raise self._make_error(node, f"nested deeper than {MAX_DEPTH} levels", "use fewer aliases")
        self._open.add(id(node))
        try:
            yield
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.Node, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in self._own_pairs(node, place):
            key, line = key_node.value, key_node.start_mark.line + 1
            first = self._document.lines.get((*place, key))
            self._document.lines[(*place, key)] = line
            if key in values:
                hint = f"the first is in line {first}: keep one of them"
                self._document.problem(f"the key {key!r} is written twice", (*place, key), hint)
            values[key] = self.value(value_node, (*place, key))
        for key_node, value_node in self._merged_pairs(node, place):
            if key_node.value not in values:
                values[key_node.value] = self.value(value_node, (*place, key_node.value))
        return values

    def _own_pairs(self, node: yaml.Node, place: Place) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        for key_node, value_node in node.value:
            if not isinstance(key_node.value, str):
                self._document.problem("a key must be a word, not a list or a mapping", place)
            elif key_node.tag != f"{_TAG_PREFIX}merge":
                yield key_node, value_node

    def _merged_pairs(self, node: yaml.Node, place: Place) -> Iterator[tuple[yaml.Node, yaml.Node]]:
        """Yield what `<<: *base` adds: the pairs of the base, then the pairs of its bases."""
        merged = [value for key, value in node.value if key.tag == f"{_TAG_PREFIX}merge"]
        for base in [base for value in merged for base in (value.value if _is_sequence_node(value) else [value])]:
            self._count_one(base)
            if not _is_mapping_node(base):
                self._document.problem("'<<' takes a mapping, or a list of mappings", place)
                continue
            with self._enter_node(base):
                for key_node, value_node in self._own_pairs(base, place):
                    self._count_one(key_node)  # also of pairs that exist already: they take time too
                    yield key_node, value_node
                yield from self._merged_pairs(base, place)

    def _scalar(self, node: yaml.Node, place: Place) -> Any:
        import yaml

        if node.tag in _TEXT_TAGS or (node.tag in (f"{_TAG_PREFIX}int", f"{_TAG_PREFIX}float") and ":" in node.value):
            return node.value
        if node.tag not in (f"{_TAG_PREFIX}{kind}" for kind in ("null", "bool", "int", "float")):
            return self._wrong_tag(node, place)
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
        except (ValueError, LookupError):  # !!int 'x', !!int ''
            return self._wrong_tag(node, place)
        # `abs` of a whole number larger than any float is compared exactly.
        if isinstance(value, (int, float)) and not abs(value) <= sys.float_info.max:
            text = node.value if len(node.value) <= 40 else f"{node.value[:40]}…"
            self._document.problem(f"{text} is not a number in JSON", place, "leave it out")
            return None
        return value

    def _wrong_tag(self, node: yaml.Node, place: Place) -> None:
        message = f"a value of kind {node.tag.replace(_TAG_PREFIX, '!!')} cannot be used here"
        self._document.problem(message, place, "use text, numbers, lists, mappings")

    def _count_one(self, node: yaml.Node) -> None:
        self._count += 1
        if self._count > self._max_values:
            message = f"the document has more than {self._max_values} values with its aliases expanded"
            raise self._make_error(node, message, "use fewer aliases")

    def _make_error(self, node: yaml.Node, message: str, hint: str) -> LoadError:
        return LoadError(message, path=self._document.path, line=node.start_mark.line + 1, hint=hint)


def _is_mapping_node(node: yaml.Node) -> bool:
    # Both checks: anything can be tagged as anything, even `!!map "x"`.
    import yaml

    return isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG_PREFIX}map"


def _is_sequence_node(node: yaml.Node) -> bool:
    import yaml

    return isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG_PREFIX}seq"


def _convert_yaml_error(error: yaml.YAMLError, text: str, path: Path) -> LoadError:
    import yaml

    if isinstance(error, yaml.reader.ReaderError):
        # The error's own position counts bytes with one parser and characters with the other.
        match = yaml.reader.Reader.NON_PRINTABLE.search(text)
        line = text.count("\n", 0, match.start()) + 1 if match else 1
        return LoadError("a character that text cannot contain", path=path, line=line, hint="delete it")
    lines = text.splitlines() or [""]
    if not isinstance(error, yaml.MarkedYAMLError) or (mark := error.problem_mark or error.context_mark) is None:
        return LoadError(f"not YAML: {error}", path=path)
    # A quote or bracket that is never closed is detected at the end of the file: name the line where it was opened.
    last = len(lines) - 1
    index = min(mark.line, last)
    opened = min(error.context_mark.line, last) if error.context_mark else index
    context = f"{error.context} in line {opened + 1}: " if opened != index else ""
    problem = error.problem or "it cannot be read"
    hint = _suggest_fix(problem, lines[index])
    return LoadError(f"not YAML: {context}{problem}", path=path, line=index + 1, hint=hint)


def _suggest_fix(problem: str, line: str) -> str | None:
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces, not with tabs"
    if "mapping values are not allowed" in problem:
        return "put text that contains ': ' in quotes, and check the indentation"
    if "cannot start any token" in problem:
        return "put text that starts with a special character in quotes"
    if "expected key" in problem or "block end" in problem:
        return "check the indentation and the quotes above this line"
    return None
