"""What is small talk and what is not."""

import string

from hypothesis import given
from hypothesis import strategies as st

from ferrule.orchestrator.small_talk import SmallTalk, detect_small_talk

GREETINGS = ["hi", "Hello there!", "hey hey", "Good morning 👋", "HI!!!", "ｈｅｌｌｏ", "how are you?"]
GREETINGS += ["你好", "嗨", "你好啊！", "hello 你好"]
SMALL_TALK = {
    SmallTalk.GREETING: GREETINGS,
    SmallTalk.CAPABILITIES: [
        *("What can you do?", "hello, what can you do for me", "which tools do you have?", "help"),
        *("你都能干什么", "你能做什么？", "你好，你有哪些工具", "介绍一下你自己"),
    ],
    SmallTalk.IDENTITY: ["who are you?", "What's your name?", "are you a robot?", "你是谁", "你叫什么名字？"],
    SmallTalk.LAST_QUESTION: [
        *("what did I ask?", "What did I just ask you?", "What was my last question", "上一个问题", "我刚刚问了什么？"),
    ],
    SmallTalk.QUESTIONS: [
        *("what have I asked so far?", "list my questions", "我问过哪些问题", "列出我的问题", "chat history"),
    ],
    SmallTalk.LAST_ANSWER: ["what did you say?", "What was your last answer?", "你刚才说了什么", "上一个回答是什么"],
}
REQUESTS = [
    *("this", "hi, what is 2+2?", "你好，2+2等于几？", "hi5", "hithere", "Say hello to Bob", "ship it"),
    *("what can you do about spam?", "help me write a letter", "what did I ask Bob to do?", "上一个问题的答案乘以二"),
    *("hello world program in C", "你好吗用英语怎么说"),
]


def test_small_talk_is_recognised_and_a_request_is_none():
    expected = {text: kind for kind, texts in SMALL_TALK.items() for text in texts} | dict.fromkeys(REQUESTS)
    assert {text: detect_small_talk(text) for text in expected} == expected


def test_an_acknowledgement_may_be_an_answer_to_a_language_model():
    for text in ("ok", "Cool!", "sorry", "got it", "好的", "嗯"):
        assert detect_small_talk(text) is None
        assert detect_small_talk(text, has_language_model=False) is SmallTalk.ACKNOWLEDGEMENT


@given(st.text(string.ascii_letters, min_size=1, max_size=12), st.sampled_from(["hi", "hey", "yo", "hello", "help"]))
def test_a_greeting_inside_a_longer_word_is_none(letters, word):
    assert detect_small_talk(letters + word + "q") is None
    assert detect_small_talk("q" + word + letters) is None


@given(st.sampled_from(GREETINGS), st.text("0123456789+*/=", min_size=1, max_size=8))
def test_a_greeting_with_anything_to_compute_is_none(greeting, sum_):
    assert detect_small_talk(f"{greeting} {sum_}") is None


@given(st.sampled_from(GREETINGS), st.text(" .,!?。，！？~…\t\n👋🙂", max_size=6))
def test_punctuation_makes_no_difference(greeting, ending):
    assert detect_small_talk(f"{greeting}{ending}") is SmallTalk.GREETING


def test_a_long_text_is_never_small_talk():
    assert detect_small_talk("hello " * 30) is None
