"""Chinese texts for the errors that answers to people contain. Errors are written in English, for models and logs.

An error is translated piece by piece: what a tool, a server or the operating system adds stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_CHINESE: Final[tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]] = (
    # Plans
    (r"The run was stopped: ", "运行已停止："),
    (r"\bit made (\d+) calls? \(limit (\d+)\)", r"已调用 \1 次工具（上限 \2）"),
    (r"\bit took (\d+) s \(limit ([\d.]+) s\)", r"已用 \1 秒（上限 \2 秒）"),
    (r"\bit used (\d+) tokens \(limit (\d+)\)", r"已用 \1 个词元（上限 \2）"),
    (r"\bThe result is empty\.", "结果为空。"),
    (r"\bIt is from the model and no tool, because (\S+) failed\.", r"\1 失败，结果来自模型而非工具。"),
    (r"\bThe plan was invalid: ", "计划无效："),
    (r"\bIt needs the result of step (\S+), which (?:failed|was skipped)\.", r"它需要第 \1 步的结果，而该步没有成功。"),
    (r"\bStep (\S+): ", r"第 \1 步："),
    # Calculations
    (r"this divides by zero\.", "除数不能为零。"),
    (r"(\S+) is not defined for ([^\n]+?)\.(?= |\Z)", r"\1 对 \2 没有定义。"),
    (
        r"the expression cannot be read\. Write something like 2 \* \(3 \+ 4\)\.",
        "无法读懂这个算式，请写成 2 * (3 + 4) 的样子。",
    ),
    (r"(\S+) cannot be converted to (\S+): [^\n]+?\.(?= |\Z)", r"\1 不能换算成 \2。"),
    # Files
    (r"('[^'\n]+') does not exist any more: another process has removed it\.", r"\1 已不存在：它被另一个进程删除了。"),
    (r"('[^'\n]+') does not exist\.", r"\1 不存在。"),
    (r"(?<=') or (?=')", " 或 "),
    (r"(?<=') and (\d+) more(?=\.)", r" 等（另有 \1 个）"),
    (r" ?Did you mean ('[^?\n]+)\?", r"您是不是想找 \1？"),
    (r" ?In the workspace there is nothing\.", "工作目录是空的。"),
    (r" ?In the workspace there is ('[^\n]+)\.\Z", r"工作目录中有：\1。"),
    (
        r"('[^'\n]+') exists already\. Choose another name; call overwrite to replace its content, append to add to "
        r"it, or delete to remove it\.",
        r"\1 已存在。请换一个名字，或者要求覆盖、追加或删除它。",
    ),
    (r"('[^'\n]+') exists already\.", r"\1 已存在。"),
    (r"('[^'\n]+') contains '\.\.', which could lead out of the workspace\.", r"\1 含有 '..'，可能指向工作目录之外。"),
    (r"('[^'\n]+') is outside the workspace\.", r"\1 在工作目录之外。"),
    (r" ?Give a path relative to the workspace, such as ('[^'\n]+')\.", r"请给出相对于工作目录的路径，例如 \1。"),
    # The network
    (r"the host ('[^'\n]+') cannot be found\. Check its name\.", r"找不到主机 \1，请检查名称。"),
    # Calls
    (
        r"Tool ('[^'\n]+') did not finish within ([\d.e+]+) s and was stopped\. Ask for less in one call, or allow it "
        r"more time\.",
        r"工具 \1 在 \2 秒内没有完成，已被停止。",
    ),
    (r"The user refused this call([.:]) ?", lambda m: f"用户拒绝了这次调用{'。' if m[1] == '.' else '：'}"),
    (
        r"Tool ('[^'\n]+') did not finish within ([\d.e+]+) s\. It could not be stopped, because its code blocked the "
        r"event loop for ([\d.]+) s, so it ran to its end: what it did has taken effect\. Write it as `def`, which "
        r"runs in a worker process that can be killed, or await what takes long\.",
        r"工具 \1 在 \2 秒内没有完成，也无法停止，因为它的代码阻塞了事件循环 \3 秒，已运行到结束，其效果已经产生。"
        r"请把它写成 `def`（在可以终止的工作进程中运行），或对耗时的部分使用 await。",
    ),
    # Reasons of approvals
    (r"A DELETE request may destroy something that cannot be restored\.", "DELETE 请求可能造成无法恢复的破坏。"),
    (r"(\S+) may destroy something that cannot be restored\.", r"\1 可能造成无法恢复的破坏。"),
    (r"(\S+) needs your approval\.", r"\1 需要您的批准。"),
    (r"(\S+) has changed since you accepted it:", r"\1 在您接受之后有变化："),
    (
        r"(\S+) would use ('[^\n]*'|\"[^\n]*\"|a text of \d+ characters) as (\S+), which the user has "
        r"not named \(([^\n]*); \[policy\] untrusted_targets decides about such calls\)\.",
        r"\1 要把 \2 用作 \3，而用户没有提到它（\4；这类调用由 [policy] untrusted_targets 决定）。",
    ),
    (
        r"(\S+) changes something, and the user has asked for no such thing \(\[policy\] untrusted_targets decides "
        r"about such calls\)\.",
        r"\1 会改变某些内容，而用户没有要求这样做（这类调用由 [policy] untrusted_targets 决定）。",
    ),
    (
        r"(\S+) works on a page that the run does not know \(\[policy\] untrusted_targets decides about such calls\)\.",
        r"\1 要操作的网页不为本次运行所知（这类调用由 [policy] untrusted_targets 决定）。",
    ),
    (r"a text of (\d+) characters(?= 用作)", r"一段 \1 个字符的文字"),
    (r"in no text of the run: the model wrote it(?=；)", "运行中没有这段文字，是模型写的"),
    (r"from the result of (\S+) in step (\d+)(?=；)", r"来自第 \2 步 \1 的结果"),
    (r"from the page (\S+), read by (\S+) in step (\d+)(?=；)", r"来自网页 \1（第 \3 步由 \2 读取）"),
    (r"from the conversation before(?=；)", "来自此前的对话"),
    (
        r"The budget ('[^'\n]+') of ([\d.e+-]+)(?: of the [^\n]*?)?(?: for (\d{4}[\dT-]*))? does not pay for more\.",
        lambda m: f"预算 {m[1]}（{m[2]}{f'，{m[3]}' if m[3] else ''}）已经用完。",
    ),
    (r" ?A call of (\S+) costs ([\d.e+-]+)\.", r"调用一次 \1 的费用是 \2。"),
    (r"The policy does not allow ('[^'\n]+')\.", r"策略不允许 \1。"),
    (r"There is no tool ('[^'\n]+')(?: here)?\.(?: List the tools to see which exist\.)?", r"没有工具 \1。"),
    (r"Tool ('[^'\n]+') has no action ('[^'\n]+')\. Its actions are: ", r"工具 \1 没有动作 \2。它的动作有："),
    (r"Invalid arguments for ('[^'\n]+'): ", r"\1 的参数无效："),
    (r"Step (\S+) lacks arguments that ('[^'\n]+') needs: ", r"第 \1 步缺少 \2 需要的参数："),
    (r"([\w.\[\]-]+): is required\.", r"缺少 \1。"),
    (r" ?It is described as “([^”\n]*)”\.", r"它的说明是“\1”。"),
    # Calls that are known to fail
    (
        r"This call of ('[^'\n]+') failed (?:once|(\d+) times) before and was not made again: ",
        lambda m: f"{m[1]} 的这次调用此前已失败 {m[2] or 1} 次，没有再次执行：",
    ),
    (r" ?It has been requested (\d+) more times since\.", r"此后又被请求 \1 次。"),
    (r" ?Correct the arguments; the same ones fail again\.", "请更正参数：同样的参数还会失败。"),
    (r" ?It may work later; do something else meanwhile\.", "稍后可能会成功，请先做别的。"),
    (r" ?It is not permitted: ask the user, or do without it\.", "没有权限：请询问用户，或不用它。"),
    (
        r" ?What it asks for does not exist: look at what exists and ask for that\.",
        "所请求的东西不存在：请先看看有什么。",
    ),
    (r" ?It cannot work: try a different approach\.", "这样行不通：请换一种办法。"),
    (
        r" ?Change the arguments, or use another tool; the same call fails again\.",
        "请更改参数或换一个工具：同样的调用还会失败。",
    ),
    (r" ?Arguments that worked: ", " 成功过的参数："),
    (r" ?Try instead: ", " 可以改用："),
    # Runs that were stopped
    (r"it took (\d+) turns \(limit (\d+)\)", r"已用 \1 轮（上限 \2）"),
    (r"it made (\d+) calls \(limit (\d+)\)", r"已调用 \1 次（上限 \2）"),
    (r"it used (\d+) tokens \(limit (\d+)\)", r"已用 \1 个 token（上限 \2）"),
    (r"it took (\d+) s \(limit ([\d.e+]+) s\)", r"已用 \1 秒（上限 \2 秒）"),
    (r"it cost ([\d.e+-]+) \(limit ([\d.e+-]+)\)", r"已花费 \1（上限 \2）"),
    (r"the model repeated calls that were refused, in (\d+) turns in a row", r"模型连续 \1 轮重复被拒绝的调用"),
    (r"the model gave (\d+) replies in a row without a call or an answer", r"模型连续 \1 次既没有调用工具也没有回答"),
)
_MAX_LENGTH: Final = 5_000


def translate_error(message: str, language: str) -> str:
    """Return the text of an error in the language of an answer; what is not known stays in English."""
    if language != "zh" or len(message) > _MAX_LENGTH:
        return message
    for pattern, chinese in _CHINESE:
        message = re.sub(pattern, chinese, message)
    return message
