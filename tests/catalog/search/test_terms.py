from ferrule.catalog.search.terms import extract_index_terms, extract_terms, remove_case_and_punctuation, stem


def test_words_are_split_at_case_underscores_dots_and_dashes():
    assert extract_terms("get_user-name list.all XMLHttpRequest") == [
        *("get", "user", "name", "list"),
        *("xml", "http", "request", "xmlhttprequest"),
    ]


def test_a_word_of_mixed_case_is_its_parts_and_the_whole():
    assert extract_terms("GitHub") == ["git", "hub", "github"]
    assert extract_terms("github") == ["github"]


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
    for first, second in (("string", "str"), ("fill", "file"), ("news", "knew"), ("status", "stat"), ("speed", "spe")):
        assert stem(first) != stem(second)


def test_digits_stay_with_their_letters():
    assert extract_terms("base64 sha256 v2 42") == ["base64", "sha256", "v2", "42"]


def test_full_width_letters_and_accents_are_folded():
    assert extract_terms("ＨＴＴＰ Café naïve") == ["http", "cafe", "naiv"]


def test_chinese_japanese_and_korean_are_read_in_pairs_of_characters():
    assert extract_terms("搜索网页") == ["搜索", "索网", "网页"]
    assert extract_terms("天気を調べる")[:2] == ["天気", "気を"]
    assert extract_terms("날씨 검색") == ["날씨", "검색"]


def test_mixed_text_is_split_where_the_script_changes():
    assert extract_terms("用Python读取CSV文件") == ["用", "python", "读取", "csv", "文件"]


def test_stop_words_are_left_out():
    assert extract_terms("How do I use the 数据库的连接") == ["数据", "据库", "连接"]


def test_an_index_also_keeps_single_characters():
    assert extract_index_terms("天气") == ["天气", "天", "气"]
    assert extract_index_terms("plain text") == ["plain", "text"]


def test_names_that_differ_in_punctuation_fold_to_one():
    assert (
        remove_case_and_punctuation("Get-Weather")
        == remove_case_and_punctuation("get_weather")
        == remove_case_and_punctuation("getWeather")
        == "getweather"
    )
    assert remove_case_and_punctuation("网页_导航器") == "网页导航器"
