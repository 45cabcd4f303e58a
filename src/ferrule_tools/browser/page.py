"""Finding, reading and using the elements of a page, and moving between pages."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ferrule.core.patterns import lazy_pattern
from ferrule.errors import CallError, ExecutionFailed, PermissionDenied, Retry, Transient, TransportFault
from ferrule.http.client import format_url
from ferrule_tools.browser.chromium import Chromium
from ferrule_tools.browser.tabs import BrowserTab, BrowserTabs, PageScripts

if TYPE_CHECKING:
    from playwright.async_api import Locator

_NET_ERROR = lazy_pattern(r"net::(ERR_[A-Z_]+)")
_DOWNLOAD_MESSAGE = lazy_pattern(r"Download is starting")
_ERRORS_BY_CODE: Final[dict[str, tuple[type[CallError], str]]] = {
    "ERR_TOO_MANY_REDIRECTS": (ExecutionFailed, "it redirects without end. Use the address it should lead to"),
    "ERR_ABORTED": (ExecutionFailed, "it leads to no page that can be shown"),
    "ERR_INVALID_URL": (Retry, "it is not a valid URL"),
    "ERR_UNSAFE_PORT": (ExecutionFailed, "browsers do not connect to this port"),
    "ERR_INVALID_RESPONSE": (ExecutionFailed, "the server did not answer with valid HTTP"),
}
_CLOSED_MESSAGE = lazy_pattern(r"has been closed|connection closed|target crashed|page crashed|browser.*closed", re.I)
_SELECTOR_ERROR = lazy_pattern(r"parsing (?:css |)selector|unexpected token|unknown engine|not a valid|malformed", re.I)
_USABILITY_PROBLEMS: Final = (
    (lazy_pattern(r"<[^>]{1,200}>[^\n]{0,80} intercepts pointer events"), "something lies over it: {found}"),
    (lazy_pattern(r"element is not visible"), "it is not visible"),
    (lazy_pattern(r"element is not enabled"), "it is disabled"),
    (lazy_pattern(r"element is not editable|not an <input>|not editable"), "nothing can be typed into it"),
    (lazy_pattern(r"did not find some options"), "it has no such option"),
    (lazy_pattern(r"element is not stable"), "it keeps moving"),
    (lazy_pattern(r"outside of the viewport"), "it lies outside of the page"),
)


async def convert_browser_error(error: Exception, tabs: BrowserTabs, url: str) -> CallError:
    """Convert an error of Playwright. `url` is the current page, or the page that was being opened."""
    text = str(error)
    if (code := _NET_ERROR.search(text)) is not None:
        return _unreachable_error(code[1], tabs, url)
    if _DOWNLOAD_MESSAGE.search(text):
        return ExecutionFailed(f"{format_url(url)} is a file to download, not a page.")
    if _CLOSED_MESSAGE.search(text):
        return await browser_ended_error(tabs.chromium) or ExecutionFailed(
            f"The page {format_url(url)} was closed or has crashed. Navigate again."
        )
    first_line = text.strip().partition("\n")[0]
    return ExecutionFailed(f"On {format_url(url)}: {first_line[:300]}")


async def browser_ended_error(chromium: Chromium) -> CallError | None:
    """Return the error to raise if the browser has ended; None if it is still running."""
    await chromium.check()
    if chromium.is_alive:
        return None
    return TransportFault("The browser has ended. The next call starts it again; navigate again.")


def _unreachable_error(code: str, tabs: BrowserTabs, url: str) -> CallError:
    where = format_url(url)
    refusal = tabs.chromium.proxy.refusal(url)
    if isinstance(refusal, PermissionDenied):
        return PermissionDenied(f"{where} was not opened: {refusal}")
    if refusal is not None:
        # Not a TransportFault: the browser itself works, and other sites may be reachable.
        kind: type[CallError] = Retry if refusal.details.get("unknown_host") else Transient
        return kind(f"{where} was not opened: {refusal}")
    if code.startswith(("ERR_CERT", "ERR_SSL")):
        return ExecutionFailed(f"{where} was not opened: its certificate cannot be trusted ({code}).")
    kind, words = _ERRORS_BY_CODE.get(code, (Transient, f"the connection failed ({code})"))
    return kind(f"{where} was not opened: {words}.")


# ---- outline: the usable elements of a page, and those most similar to a selector that matched nothing

OUTLINE_LIMITS: Final = {
    "milliseconds": 1500,
    "scanned": 20_000,
    "text": 80,
    "each": {
        "link": 60,
        "button": 30,
        "textbox": 30,
        "heading": 20,
        "table": 10,
        "frame": 5,
        "number": 30,
        "other": 15,
    },
}
MAX_SUGGESTED: Final = 8
"""Elements that an error message lists."""

_OUTLINE_SCRIPT_PATH: Final = Path(__file__).with_name("outline.js")
_WORD = lazy_pattern(r"[^\W\d_]{3,}")
_TAG = lazy_pattern(r"([A-Za-z][\w-]*)?[^\s>+~]*\Z")
_PREFIX_LENGTH: Final = 4


async def outline_page(scripts: PageScripts) -> dict[str, Any]:
    """List the usable elements: `elements` in page order, `left_out` the number that was omitted."""
    outline: dict[str, Any] = await scripts.run(
        _OUTLINE_SCRIPT_PATH.read_text(encoding="utf-8").rstrip().rstrip(";"), OUTLINE_LIMITS
    )
    return outline


def _describe_similar_elements(elements: Sequence[dict[str, Any]], selector: str) -> str:
    """Return the elements most similar to a selector; equally similar ones in page order.

    They are listed like `span#n (number, '3', class 'count')`, with the class only if it is similar.
    """
    prefixes, tag = _word_prefixes(selector), _TAG.search(selector.strip())
    tag_name = (tag and tag[1] or "").lower()

    def similarity(element: dict[str, Any]) -> float:
        details = _word_prefixes(f"{element['selector']} {element['text']} {element.get('class', '')}")
        shared = len(prefixes & details) / len(prefixes) if prefixes else 0.0
        has_digit = re.search(r"\d", str(element["text"])) is not None
        return shared + (0.3 if element["tag"] == tag_name else 0.0) + (0.1 if has_digit else 0.0)

    descriptions = []
    for element in sorted(elements, key=lambda element: -similarity(element))[:MAX_SUGGESTED]:
        details = [str(element["role"])]
        if element["text"]:
            details.append(_quote(element["text"]))
        if prefixes & _word_prefixes(element.get("class", "")):
            details.append(f"class {_quote(element['class'])}")
        descriptions.append(f"{element['selector']} ({', '.join(details)})")
    return "; ".join(descriptions)


def _quote(text: Any) -> str:
    return "'" + str(text).replace("'", "’") + "'"


def _word_prefixes(text: str) -> set[str]:
    return {word[:_PREFIX_LENGTH].lower() for word in _WORD.findall(text)}


async def find_elements(tab: BrowserTab, selector: str, seconds: float) -> Locator:
    """Wait until at least one element matches a selector; returns all that match."""
    from playwright.async_api import Error, TimeoutError

    elements = tab.page.locator(selector)
    try:
        await elements.first.wait_for(state="attached", timeout=_to_milliseconds(seconds))
    except TimeoutError:
        if not await elements.count():  # on a slow page the element may exist although the wait timed out
            raise ExecutionFailed(
                f"No element matches '{selector}' on {format_url(tab.page.url)}.{await _page_hint(tab, selector)}",
                status=404,  # so that text of the page ("429 stars") is not taken for an HTTP status
                untrusted=True,
            ) from None
    except Error as error:
        if not _SELECTOR_ERROR.search(str(error)):
            raise
        raise Retry(f"'{selector}' cannot be read as a selector: {str(error).splitlines()[0]}") from error
    return elements


async def find_element(tab: BrowserTab, selector: str, seconds: float) -> Locator:
    """Return the only element that matches a selector, or the only visible one."""
    elements = await find_elements(tab, selector, seconds)
    count = await elements.count()
    if count == 1:
        return elements.first
    visible = elements.filter(visible=True)
    if await visible.count() != 1:
        raise Retry(
            f"'{selector}' matches {count} elements on {format_url(tab.page.url)}. Use a selector that matches one, "
            f"or add >> nth=0 for the first.{await _page_hint(tab, selector)}",
            untrusted=True,
        )
    return visible.first


async def wait_until_visible(tab: BrowserTab, selector: str, seconds: float) -> None:
    from playwright.async_api import TimeoutError

    elements = await find_elements(tab, selector, seconds)
    try:
        await elements.filter(visible=True).first.wait_for(timeout=_to_milliseconds(seconds))
    except TimeoutError:
        raise ExecutionFailed(
            f"'{selector}' is on {format_url(tab.page.url)}, but was not visible within {seconds:g} seconds."
        ) from None


async def act_on_element(tab: BrowserTab, selector: str, work: Awaitable[Any]) -> None:
    """Perform an action on an element; the error says why it is impossible."""
    from playwright.async_api import Error

    try:
        await work
    except Error as error:
        matches = ((pattern.search(str(error)), words) for pattern, words in _USABILITY_PROBLEMS)
        reason = next((words.format(found=match[0]) for match, words in matches if match), None)
        if reason is None:
            raise
        raise ExecutionFailed(
            f"'{selector}' is on {format_url(tab.page.url)}, but cannot be used: {reason}."
            f"{await _page_hint(tab, selector)}",
            untrusted=True,
        ) from error


async def _page_hint(tab: BrowserTab, selector: str) -> str:
    try:
        elements = (await outline_page(tab.scripts))["elements"]
    except Exception:  # the page cannot be read: the error is reported without a hint
        return ""
    if not elements:
        return " There is nothing on the page that could be used."
    return f" On the page: {_describe_similar_elements(elements, selector)}."


def _to_milliseconds(seconds: float) -> float:
    return max(seconds * 1000, 1.0)  # Playwright takes 0 for "no limit"


# ---- reading elements and pages, limited to what a model can take

MAX_TEXT_LENGTH: Final = 20_000
"""Characters of one result."""
MAX_ELEMENTS: Final = 100
MAX_PAGE_LENGTH: Final = 20_000_000
"""Pages with more characters of HTML are not read element by element: an element's whole text is transferred before it
is shortened."""

_PAGE_TEXT_SCRIPT: Final = """(most) => {
  const read = (type, name, node) => Object.getOwnPropertyDescriptor(type.prototype, name).get.call(node);
  const find = (selector) => Document.prototype.querySelector.call(document, selector);
  const node = find("body") || find("*");
  let text = node ? read(Node, "textContent", node) : "";
  // As it is laid out, unless laying it out takes seconds.
  if (node instanceof HTMLElement && text.length < 50 * most) text = read(HTMLElement, "innerText", node);
  return { text: text.slice(0, most), length: text.length };
}"""
_PAGE_SIZE_SCRIPT: Final = """() => Object.getOwnPropertyDescriptor(Element.prototype, "outerHTML").get.call(
  Document.prototype.querySelector.call(document, "*")).length"""
_READ_ELEMENTS_SCRIPT: Final = """(selector, attribute, wanted, most) => {
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
_ATTRIBUTE_NAMES_SCRIPT: Final = """(selector) => {
  try {
    const node = Document.prototype.querySelector.call(document, selector);
    return Element.prototype.getAttributeNames.call(node).slice(0, 30).join(", ").slice(0, 500);
  } catch { return "" }
}"""


async def read_page_text(scripts: PageScripts) -> dict[str, Any]:
    content = await scripts.run(_PAGE_TEXT_SCRIPT, MAX_TEXT_LENGTH)
    return _shorten_text(content["text"], content["length"])


async def read_elements(
    scripts: PageScripts, elements: Locator, selector: str, attribute: str, *, count: int, many: bool
) -> dict[str, Any]:
    """Return the content of the first element, or of many."""
    limit = min(count, MAX_ELEMENTS) if many else 1
    content = await scripts.run(_READ_ELEMENTS_SCRIPT, selector, attribute, limit, MAX_TEXT_LENGTH)
    if content is None or content["count"] != count:  # a selector that only Playwright understands
        content = await _read_one_by_one(scripts, elements, attribute, limit)
    values = content["values"]
    if not many and values[0] is None:
        names = await scripts.run(_ATTRIBUTE_NAMES_SCRIPT, selector)
        raise Retry(
            f"The element at {selector!r} has no {attribute!r}. Use text, html"
            + (f", or one of its attributes: {names}." if names else ".")
        )
    if not many:
        return _shorten_text(values[0], content["lengths"][0])
    whole = len(values) == count and sum(content["lengths"]) <= MAX_TEXT_LENGTH
    return {"texts": values, **({} if whole else {"cut": f"{len(values)} of {count} elements, their texts cut"})}


async def _read_one_by_one(scripts: PageScripts, elements: Locator, attribute: str, limit: int) -> dict[str, Any]:
    size = await scripts.run(_PAGE_SIZE_SCRIPT)
    if size > MAX_PAGE_LENGTH:
        raise ExecutionFailed(
            f"The page has {size:,} characters of HTML, too many to look for single elements. "
            "Call extract without a selector for the beginning of its text."
        )
    values: list[str | None] = []
    lengths: list[int] = []
    for at in range(limit):
        value = await _read_value(elements.nth(at), attribute)
        values.append(value if value is None else value[: max(0, MAX_TEXT_LENGTH - sum(lengths))])
        lengths.append(len(value or ""))
        if sum(lengths) > MAX_TEXT_LENGTH:
            break
    return {"values": values, "lengths": lengths}


def _shorten_text(text: str, length: int) -> dict[str, Any]:
    if length <= MAX_TEXT_LENGTH:
        return {"text": text}
    return {
        "text": text[:MAX_TEXT_LENGTH],
        "cut": f"the first {MAX_TEXT_LENGTH} of {length} characters; extract a part of the page",
    }


async def _read_value(element: Locator, attribute: str) -> str | None:
    from playwright.async_api import Error

    if attribute == "html":
        return await element.inner_html()
    if attribute == "value":
        return await element.input_value()
    if attribute != "text":
        return await element.get_attribute(attribute)
    try:
        return (await element.inner_text()).strip()
    except Error as error:
        if "not an HTMLElement" not in str(error):
            raise
        return (await element.text_content() or "").strip()  # an SVG element


# ---- moving between pages

LOAD_TIMEOUT: Final = 3.0
"""Seconds a readable page may take to load images and scripts."""
CLICK_DELAY: Final = 0.1
"""Seconds to wait for the effect of a click."""
NEW_PAGE_LINK: Final = "xpath=ancestor-or-self::a[@target='_blank']"
NEW_PAGE_TIMEOUT: Final = 5.0
"""Seconds to wait for the page that such a link opens."""
MAX_TITLE_LENGTH: Final = 200


async def open_url(tab: BrowserTab, url: str) -> int | None:
    """Open a page; returns its HTTP status. Redirects by scripts, or the previous page, can interrupt it."""
    from playwright.async_api import Error

    navigations = tab.navigations
    for is_last in (False, True):
        try:
            answer = await tab.page.goto(url, wait_until="domcontentloaded", timeout=0)
            break
        except Error as error:
            if not any(text in str(error) for text in ("interrupted by another navigation", "net::ERR_ABORTED")):
                raise
            await _wait_for_load(tab)
            if is_last and tab.navigations == navigations:  # no other page was opened
                raise
            answer = None
    await _wait_for_load(tab)
    return answer.status if answer is not None else None


async def go_back(tabs: BrowserTabs) -> None:
    """Go to the previous page, or to the page that opened this one."""
    page = tabs.front.page
    before = page.url
    await page.go_back(wait_until="domcontentloaded", timeout=0)
    if page.url not in (before, "about:blank") or await tabs.close_front():
        return
    if page.url == "about:blank":
        await page.go_forward(wait_until="domcontentloaded", timeout=0)
    raise Retry(f"There is no page before {format_url(before)}.")


async def finish_action(tabs: BrowserTabs, *, opens_page: bool = False) -> dict[str, Any]:
    """Wait until the page has reacted to an action, which may open another one, and describe it."""
    if opens_page:
        with suppress(TimeoutError):  # the page may prevent it
            await asyncio.wait_for(tabs.new_page.wait(), NEW_PAGE_TIMEOUT)
    else:
        await asyncio.sleep(CLICK_DELAY)
    await tabs.wait_for_pages()
    tab = tabs.front
    await _wait_for_load(tab)
    if tab.page.url.startswith("chrome-error:"):
        raise _unreachable_error("ERR_FAILED", tabs, tab.failed_url or tab.page.url)
    return await describe_location(tabs)


async def describe_location(tabs: BrowserTabs) -> dict[str, Any]:
    """Return what every result contains: the current page, and that its content is untrusted."""
    title = await _read_title(tabs.front)
    result: dict[str, Any] = {"url": tabs.front.page.url, "title": title[:MAX_TITLE_LENGTH]}
    if dialogs := tabs.take_dialogs():
        result["dialogs"] = dialogs
    return {**result, "untrusted": True}


async def _read_title(tab: BrowserTab) -> str:
    """Return the title; if the page is just being replaced, that of the new document."""
    from playwright.async_api import Error

    try:
        return await tab.page.title()
    except Error as error:
        if "context was destroyed" not in str(error):
            raise
        await _wait_for_load(tab)
        return await tab.page.title()


async def _wait_for_load(tab: BrowserTab) -> None:
    from playwright.async_api import TimeoutError

    with suppress(TimeoutError):  # the page is readable without waiting for the rest
        await tab.page.wait_for_load_state("load", timeout=LOAD_TIMEOUT * 1000)
