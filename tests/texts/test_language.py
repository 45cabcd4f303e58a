from ferrule.texts.description_labels import description_texts
from ferrule.texts.language import contains_chinese, detect_language
from ferrule.texts.prompts import prompt_texts


def test_the_language_is_that_of_most_words():
    for text, language in (
        ("How many stars?", "en"),
        ("有多少颗星？", "zh"),
        ("请用 browser_navigator 打开 https://github.com/some/long/address 页面", "zh"),
        ("把 notes.txt 移动到 /tmp/x.txt", "zh"),
        ("抓取 ftp://a.example/b", "zh"),
        ('Translate "你好，世界" to English', "en"),
        ("東京の天気を教えてください", "en"),
        ("", "en"),
        ("42", "en"),
    ):
        assert detect_language(text) == language, text


def test_one_chinese_character_is_found_anywhere():
    assert contains_chinese("Asia/Shanghai 今") and not contains_chinese("Asia/Shanghai today")


def test_every_text_has_a_chinese_one():
    for texts in (prompt_texts, description_texts):
        english, chinese = (
            {name for name in vars(type(texts(language))) if name[0] != "_"} for language in ("en", "zh")
        )
        assert chinese == english
