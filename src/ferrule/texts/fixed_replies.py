"""Replies that Ferrule writes itself, without a model, by language: small talk, refusals, reports of stopped runs."""

from __future__ import annotations

from typing import Final

SMALL_TALK: Final = {
    "en": {
        "greeting": "Hello! I am Ferrule. I answer questions with {count}. Ask me something, or ask what I can do.",
        "identity": "I am Ferrule, a program. I answer questions with {count}. Ask what I can do.",
        "thanks": "You're welcome!",
        "acknowledgement": "All right. Ask me anything else.",
        "goodbye": "Goodbye!",
        "count": "the help of {n} tools",
        "one": "the help of one tool",
        "none": "a language model alone, as there are no tools yet",
        "can": "I am Ferrule, and I answer questions with these {n} tools:",
        "example": "For example: ",
        "cannot": "There are no tools yet. Register some, or put tool files into a folder of ferrule.toml.",
        "more": "and {n} more",
        "other": "general",
        "last_question": "Your last question was: {text}",
        "questions": "So far you have asked:",
        "last_answer": "My last answer was: {text}",
        "no_question": "You have not asked anything yet in this conversation.",
        "no_answer": "I have not answered anything yet in this conversation.",
        "comma": ", ",
    },
    "zh": {
        "greeting": "你好！我是 Ferrule，可以{count}回答问题。请直接提问，或者问我能做什么。",
        "identity": "我是 Ferrule，一个程序，可以{count}回答问题。你可以问我能做什么。",
        "thanks": "不客气！",
        "acknowledgement": "好的，还有什么问题请告诉我。",
        "goodbye": "再见！",
        "count": "借助 {n} 个工具",
        "one": "借助 1 个工具",
        "none": "用语言模型（目前还没有工具）",
        "can": "我是 Ferrule，可以用这 {n} 个工具回答问题：",
        "example": "例如：",
        "cannot": "目前还没有工具。请注册工具，或把工具文件放进 ferrule.toml 指定的文件夹。",
        "more": "等，另有 {n} 个",
        "other": "通用",
        "last_question": "你的上一个问题是：{text}",
        "questions": "到目前为止你问过：",
        "last_answer": "我上一次的回答是：{text}",
        "no_question": "在这次对话中你还没有问过问题。",
        "no_answer": "在这次对话中我还没有回答过问题。",
        "comma": "、",
    },
}
EXAMPLE_QUESTIONS: Final = {
    "en": {
        "calculator": "“what is 15% of 80?”",
        "get_time": "“what time is it in Tokyo?”",
        "file_processor": "“how many lines has notes.txt?”",
    },
    "zh": {
        "calculator": "“80的15%是多少？”",
        "get_time": "“东京现在几点？”",
        "file_processor": "“notes.txt有多少行？”",
    },
}
"""By tool: what one may ask."""
CHINESE_ABILITIES: Final = {
    "browser_navigator": "在浏览器中打开、查看和操作网页。",
    "calculator": "计算算式。",
    "echo": "原样返回收到的内容。",
    "http_request": "向公开的地址发送 HTTP 请求。",
}
"""What tools do whose descriptions say so in English only."""
STOP_REPORT: Final = {
    "en": {
        "stopped": "I could not finish this: {reason}.",
        "tried": "What I tried:",
        "nothing": "No tool was called.",
        "more": "… and {count} more calls before that",
        "good": "{call}: done",
        "bad": "{call}: failed ({error})",
        "found": "The last result: {text}",
    },
    "zh": {
        "stopped": "任务未能完成：{reason}。",
        "tried": "已尝试的步骤：",
        "nothing": "没有调用任何工具。",
        "more": "… 以及此前的 {count} 次调用",
        "good": "{call}：成功",
        "bad": "{call}：失败（{error}）",
        "found": "最后得到的信息：{text}",
    },
}
DIRECT_ANSWER: Final = {
    "en": "Answer the question. Be brief and exact; say so if you do not know.",
    "zh": "请回答问题。简明准确；不知道就说不知道。",
}
CONVERSATION_HEADING: Final = {"en": "The conversation so far:", "zh": "之前的对话："}
SETUP_SUGGESTIONS: Final = {
    "en": {
        "tool": "{tool} could do this: {setting}. A language model could too: ",
        "model": "A language model could: ",
        "setting": "set OPENAI_API_KEY or ANTHROPIC_API_KEY, or OPENAI_BASE_URL for a model server of your own.",
        "set": "set {setting}",
        "or": " or ",
        "file": "{section} in ferrule.toml (`ferrule init` makes the file)",
    },
    "zh": {
        "tool": "{tool} 可以做到：{setting}。语言模型也可以：",
        "model": "语言模型可以回答：",
        "setting": "请设置 OPENAI_API_KEY 或 ANTHROPIC_API_KEY，或用 OPENAI_BASE_URL 指向自己的模型服务器。",
        "set": "请设置 {setting}",
        "or": " 或 ",
        "file": "ferrule.toml 中的 {section}（运行 ferrule init 即可生成该文件）",
    },
}
"""What could answer a question that was refused for want of a language model."""
DENIED: Final = {
    "en": "I may not do “{step}”: the policy here forbids {tool}. {reason}",
    "zh": "不允许执行“{step}”：这里的策略禁止使用 {tool}。{reason}",
}
OFFLINE_MODEL: Final = {
    "en": {
        "failure": "The call failed: {text}",
        "no_number": "I could not compute {subject}: {text}",
        "missing": "To use {tool} I still need: {names}.",
        "no_result": "“{step}” was not done, because the step before it had no result.",
        "skipped": "“{step}” was not done: no tool fits it.",
        "no_tool": "I can't answer “{step}” without a language model: no tool that is set up here fits it.",
        "possible_tool": "I can't answer “{step}” without a language model, which could use {tool} for it.",
        "no_question": "I can't tell what to do: there is no question.",
    },
    "zh": {
        "failure": "没有成功：{text}",
        "no_number": "无法计算 {subject}：{text}",
        "missing": "要使用 {tool}，还需要：{names}。",
        "no_result": "没有执行“{step}”：上一步没有给出可用的结果。",
        "skipped": "没有处理“{step}”：没有合适的工具。",
        "no_tool": "没有语言模型，我无法回答“{step}”：这里没有合适的工具可以调用。",
        "possible_tool": "没有语言模型，我无法回答“{step}”；语言模型可以用 {tool} 来回答。",
        "no_question": "不知道该做什么：没有问题。",
    },
}
"""What the offline model says itself; results are put into words by `ferrule.texts.answers`."""

QUESTIONS_TO_USER: Final = {
    "en": {
        "allow": "Allow {call} with {arguments}?",
        "reply": "[y]es, or the reason for no: ",
        "decide": "Decide with: ferrule runs resume {run_id} --approve   (or --deny)",
        "answer": 'Answer with: ferrule ask --resume {run_id} "your answer"',
        "next_answer": 'After that, answer with: ferrule ask --resume {run_id} "your answer"',
    },
    "zh": {
        "allow": "允许调用 {call} 吗？参数：{arguments}",
        "reply": "允许请输入 y，拒绝请输入理由：",
        "decide": "批准：ferrule runs resume {run_id} --approve（拒绝用 --deny）",
        "answer": '回答：ferrule ask --resume {run_id} "您的回答"',
        "next_answer": '然后回答：ferrule ask --resume {run_id} "您的回答"',
    },
}
"""What a person is asked at the terminal, and how a run that waits is continued."""
