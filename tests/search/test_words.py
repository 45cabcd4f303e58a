from ferrule.search.stemming import stem
from ferrule.search.words import fold, terms_of, terms_to_find_by


def test_words_are_split_at_case_underscores_dots_and_dashes():
    assert terms_of("get_user-name list.all XMLHttpRequest") == [
        *("get", "user", "name", "list"),
        *("xml", "http", "request", "xmlhttprequest"),
    ]


def test_a_word_of_mixed_case_is_its_parts_and_the_whole():
    assert terms_of("GitHub") == ["git", "hub", "github"]
    assert terms_of("github") == ["github"]


def test_forms_of_a_word_have_one_stem():
    for forms in (
        ["calculate", "calculates", "calculated", "calculating", "calculator", "calculation"],
        ["file", "files", "filed", "filing"],
        ["query", "queries"],
        ["run", "runs", "running"],
        ["save", "saves", "saved", "saving"],
        ["search", "searches", "searching"],
        ["parse", "parses", "parsing"],
        ["box", "boxes"],
        ["add", "adds", "added", "adding"],
        ["install", "installs", "installed", "installing"],
    ):
        assert {stem(form) for form in forms} == {stem(forms[0])}


def test_words_that_only_look_like_forms_stay_apart():
    for one, other in (("string", "str"), ("fill", "file"), ("news", "knew"), ("status", "stat"), ("speed", "spe")):
        assert stem(one) != stem(other)


def test_digits_stay_with_their_letters():
    assert terms_of("base64 sha256 v2 42") == ["base64", "sha256", "v2", "42"]


def test_full_width_letters_and_accents_are_folded():
    assert terms_of("ＨＴＴＰ Café naïve") == ["http", "cafe", "naiv"]


def test_chinese_japanese_and_korean_are_read_in_pairs_of_characters():
    assert terms_of("搜索网页") == ["搜索", "索网", "网页"]
    assert terms_of("天気を調べる")[:2] == ["天気", "気を"]
    assert terms_of("날씨 검색") == ["날씨", "검색"]


def test_mixed_text_is_split_where_the_script_changes():
    assert terms_of("用Python读取CSV文件") == ["用", "python", "读取", "csv", "文件"]


def test_words_that_say_nothing_are_left_out():
    assert terms_of("How do I use the 数据库的连接") == ["数据", "据库", "连接"]


def test_an_index_also_keeps_single_characters():
    assert terms_to_find_by("天气") == ["天气", "天", "气"]
    assert terms_to_find_by("plain text") == ["plain", "text"]


def test_names_that_differ_in_writing_only_fold_to_one():
    assert fold("Get-Weather") == fold("get_weather") == fold("getWeather") == "getweather"
    assert fold("网页_导航器") == "网页导航器"
