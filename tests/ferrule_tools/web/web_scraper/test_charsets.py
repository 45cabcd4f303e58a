"""Pages in the character sets of the world."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ferrule_tools.web.page import decode_page

CHINESE = "春眠不觉晓，处处闻啼鸟。夜来风雨声，花落知多少。这是一首唐诗，作者是孟浩然。" * 3
TRADITIONAL = "春眠不覺曉，處處聞啼鳥。夜來風雨聲，花落知多少。這是一首唐詩，作者是孟浩然。" * 3
JAPANESE = (
    "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。何でも薄暗い所でニャーニャー泣いていた。" * 3
)
KOREAN = "나는 고양이로소이다. 이름은 아직 없다. 어디서 태어났는지 도무지 짐작이 가지 않는다." * 3


def test_text_is_read_as_it_was_written():
    for text, charset, content_type, in_page in (
        (CHINESE, "gbk", "text/html; charset=GB2312", ""),
        (CHINESE, "gbk", "text/html", '<meta charset="gb2312">'),
        (CHINESE, "gb18030", "text/html", '<meta http-equiv=Content-Type content="text/html; charset=gbk">'),
        (TRADITIONAL, "big5", "text/html", "<meta charset=big5>"),
        (JAPANESE, "shift_jis", "text/html; charset=Shift_JIS", ""),
        (JAPANESE, "euc_jp", "text/html", "<meta charset=euc-jp>"),
        (KOREAN, "euc_kr", "text/html; charset=ks_c_5601-1987", ""),
        (CHINESE, "utf-8", "text/html; charset=iso-8859-1", ""),
        (CHINESE, "gbk", "text/html; charset=utf-8", "<meta charset=gbk>"),
        (CHINESE, "utf-16", "text/html; charset=utf-8", ""),
        (CHINESE, "utf-8-sig", "text/html; charset=gbk", ""),
        (CHINESE, "utf-8", "text/html", '<?xml version="1.0" encoding="utf-16"?>'),
        (CHINESE, "utf-8", "text/html; charset=no-such-charset", ""),
        (CHINESE, "utf-8", "text/html; charset=hex", "<meta charset=punycode>"),
        ("naïve “café” – €5", "cp1252", "text/html; charset=iso-8859-1", ""),
        ("Привет, мир", "koi8_r", "text/html; charset=koi8-r", ""),
    ):
        page = f"<html><head>{in_page}</head><body><p>{text}</p></body></html>"
        assert text in decode_page(page.encode(charset), content_type), (charset, content_type, in_page)


@pytest.mark.parametrize(
    ("text", "charset"), [(CHINESE, "gbk"), (TRADITIONAL, "big5"), (JAPANESE, "shift_jis"), (JAPANESE, "euc_jp")]
)
def test_where_nobody_says_it_is_found_out(text, charset):
    page = f"<html><head><title>x</title></head><body class='main'><div><p>{text}</p></div></body></html>"
    assert text in decode_page(page.encode(charset), "text/html")


@given(st.binary(max_size=300), st.text(max_size=20))
def test_whatever_the_bytes_they_become_text(content, charset):
    assert isinstance(decode_page(content, f"text/html; charset={charset}"), str)
