"""Errors in Chinese answers."""

import re

from ferrule.agent.budget import RunBudget, RunLimits
from ferrule.agent.prompts import explain_stop
from ferrule.core.messages import Usage
from ferrule.memory import ExecutionContext
from ferrule.memory.failures import POLICIES
from ferrule.texts.error_messages import translate_error


def test_the_report_of_a_run_that_reached_a_limit_has_no_english_words():
    usage, context = Usage(requests=1, input_tokens=5, output_tokens=5), ExecutionContext(task_description="算一下")
    for limits in (RunLimits(turns=1), RunLimits(calls=1), RunLimits(tokens=1), RunLimits(seconds=1)):
        reason = RunBudget(limits, usage=usage, seconds=3.0).find_reached_limit(turns=3, calls=3)
        assert reason is not None
        assert not re.search("[A-Za-z]{2}", explain_stop(context, reason, language="zh").replace("token", ""))
        assert explain_stop(context, reason).startswith(f"I could not finish this: {reason}")


def test_known_parts_are_translated_and_others_stay():
    for message, chinese in (
        ("'a.txt' does not exist. Did you mean 'b.txt'?", "'a.txt' 不存在。您是不是想找 'b.txt'？"),
        (
            "'c' does not exist. Did you mean 'a' or 'b'? In the workspace there is 'a', 'b' and 3 more.",
            "'c' 不存在。您是不是想找 'a' 或 'b'？工作目录中有：'a', 'b' 等（另有 3 个）。",
        ),
        ("the host 'a.example' cannot be found. Check its name.", "找不到主机 'a.example'，请检查名称。"),
        (
            "Tool 'fetch' did not finish within 3 s and was stopped. Ask for less in one call, or allow it more time.",
            "工具 'fetch' 在 3 秒内没有完成，已被停止。",
        ),
        ("The user refused this call: Too expensive", "用户拒绝了这次调用：Too expensive"),
        (
            "Tool 'fetch' did not finish within 1 s. It could not be stopped, because its code blocked the event loop "
            "for 3.0 s, so it ran to its end: what it did has taken effect. Write it as `def`, which runs in a worker "
            "process that can be killed, or await what takes long.",
            "工具 'fetch' 在 1 秒内没有完成，也无法停止，"
            "因为它的代码阻塞了事件循环 3.0 秒，已运行到结束，其效果已经产生。"
            "请把它写成 `def`（在可以终止的工作进程中运行），或对耗时的部分使用 await。",
        ),
        ("The user refused this call.", "用户拒绝了这次调用。"),
        (
            "post would use a text of 240 characters as url, which the user has not named (in no text of the run: the "
            "model wrote it; [policy] untrusted_targets decides about such calls).",
            "post 要把 一段 240 个字符的文字 用作 url，而用户没有提到它（运行中没有这段文字，是模型写的；"
            "这类调用由 [policy] untrusted_targets 决定）。",
        ),
        (
            "post changes something, and the user has asked for no such thing ([policy] untrusted_targets decides "
            "about such calls).",
            "post 会改变某些内容，而用户没有要求这样做（这类调用由 [policy] untrusted_targets 决定）。",
        ),
        ("quota exceeded", "quota exceeded"),
        ("There is no tool '付款'. List the tools to see which exist.", "没有工具 '付款'。"),
        (
            "This call of 'pay' failed once before and was not made again: ValueError: no. It has been requested 2 "
            "more times since. Change the arguments, or use another tool; the same call fails again.",
            "'pay' 的这次调用此前已失败 1 次，没有再次执行：ValueError: no.此后又被请求 2 次。"
            "请更改参数或换一个工具：同样的调用还会失败。",
        ),
        (
            "Invalid arguments for 'weather': city: is required. It is described as “城市”.",
            "'weather' 的参数无效：缺少 city。它的说明是“城市”。",
        ),
    ):
        assert translate_error(message, "zh") == chinese and translate_error(message, "en") == message


def test_every_advice_about_a_call_that_is_known_to_fail_has_a_chinese_text():
    for policy in POLICIES.values():
        assert not re.search("[A-Za-z]", translate_error(policy.advice, "zh"))
