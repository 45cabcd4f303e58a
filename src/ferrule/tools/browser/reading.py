"""What an element or a whole page says, never more of it than a model can take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ferrule.errors import ExecutionFailed, Retry
from ferrule.tools.browser.world import World

if TYPE_CHECKING:
    from playwright.async_api import Locator

MOST_TEXT: Final = 20_000
"""Characters of one answer."""
MOST_ELEMENTS: Final = 100
LARGEST_PAGE: Final = 20_000_000
"""Characters of HTML beyond which single elements are not asked: their text travels whole before it is cut."""

_PAGE_TEXT: Final = """(most) => {
  const read = (type, name, node) => Object.getOwnPropertyDescriptor(type.prototype, name).get.call(node);
  const find = (selector) => Document.prototype.querySelector.call(document, selector);
  const node = find("body") || find("*");
  let text = node ? read(Node, "textContent", node) : "";
  // As it is laid out, unless laying it out takes seconds.
  if (node instanceof HTMLElement && text.length < 50 * most) text = read(HTMLElement, "innerText", node);
  return { text: text.slice(0, most), length: text.length };
}"""
_SIZE: Final = """() => Object.getOwnPropertyDescriptor(Element.prototype, "outerHTML").get.call(
  Document.prototype.querySelector.call(document, "*")).length"""
_READ: Final = """(selector, attribute, wanted, most) => {
  const read = (type, name, node) => Object.getOwnPropertyDescriptor(type.prototype, name).get.call(node);
  let found;
  try { found = Document.prototype.querySelectorAll.call(document, selector) } catch { return null }
  const valueOf = (node) => {
    const [type, name] = node instanceof HTMLElement ? [HTMLElement, "innerText"] : [Node, "textContent"];
    if (attribute === "text") return read(type, name, node).trim();
    if (attribute === "html") return read(Element, "innerHTML", node);
    for (const type of [HTMLInputElement, HTMLTextAreaElement, HTMLSelectElement])
      if (attribute === "value" && node instanceof type) return read(type, "value", node);
    return Element.prototype.getAttribute.call(node, attribute);
  };
  const values = [], lengths = [];
  let left = most;
  for (let at = 0; at < wanted && at < found.length && left >= 0; at += 1) {
    const value = valueOf(found[at]);
    values.push(value === null ? null : value.slice(0, Math.max(0, left)));
    lengths.push((value || "").length);
    left -= lengths[at];
  }
  return { count: found.length, values, lengths };
}"""
_NAMES: Final = """(selector) => {
  try {
    const node = Document.prototype.querySelector.call(document, selector);
    return Element.prototype.getAttributeNames.call(node).slice(0, 30).join(", ").slice(0, 500);
  } catch { return "" }
}"""


async def page_text(world: World) -> dict[str, Any]:
    read = await world.run(_PAGE_TEXT, MOST_TEXT)
    return cut(read["text"], read["length"])


async def read_elements(
    world: World, found: Locator, selector: str, attribute: str, *, count: int, many: bool
) -> dict[str, Any]:
    """The first of the elements that were found, or many of them."""
    wanted = min(count, MOST_ELEMENTS) if many else 1
    read = await world.run(_READ, selector, attribute, wanted, MOST_TEXT)
    if read is None or read["count"] != count:  # a selector that only Playwright understands
        read = await _read_one_by_one(world, found, attribute, wanted)
    values = read["values"]
    if not many and values[0] is None:
        names = await world.run(_NAMES, selector)
        raise Retry(
            f"The element at {selector!r} has no {attribute!r}. Use text, html"
            + (f", or one of its attributes: {names}." if names else ".")
        )
    if not many:
        return cut(values[0], read["lengths"][0])
    whole = len(values) == count and sum(read["lengths"]) <= MOST_TEXT
    return {"texts": values, **({} if whole else {"cut": f"{len(values)} of {count} elements, their texts cut"})}


async def _read_one_by_one(world: World, found: Locator, attribute: str, wanted: int) -> dict[str, Any]:
    await _refuse_giants(world)
    values: list[str | None] = []
    lengths: list[int] = []
    for at in range(wanted):
        value = await _value(found.nth(at), attribute)
        values.append(value if value is None else value[: max(0, MOST_TEXT - sum(lengths))])
        lengths.append(len(value or ""))
        if sum(lengths) > MOST_TEXT:
            break
    return {"values": values, "lengths": lengths}


def cut(text: str, length: int | None = None) -> dict[str, Any]:
    length = len(text) if length is None else length
    if length <= MOST_TEXT:
        return {"text": text}
    return {
        "text": text[:MOST_TEXT],
        "cut": f"the first {MOST_TEXT} of {length} characters; extract a part of the page",
    }


async def _value(element: Locator, attribute: str) -> str | None:
    if attribute == "text":
        return await _text(element)
    if attribute == "html":
        return await element.inner_html()
    if attribute == "value":
        return await element.input_value()
    return await element.get_attribute(attribute)


async def _text(element: Locator) -> str:
    from playwright.async_api import Error

    try:
        return (await element.inner_text()).strip()
    except Error as error:
        if "not an HTMLElement" not in str(error):
            raise
        return (await element.text_content() or "").strip()  # of a drawing


async def _refuse_giants(world: World) -> None:
    size = await world.run(_SIZE)
    if size > LARGEST_PAGE:
        raise ExecutionFailed(
            f"The page has {size:,} characters of HTML, too many to look for single elements. "
            "Call extract without a selector for the beginning of its text."
        )
