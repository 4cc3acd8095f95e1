import unicodedata

import pytest

from trl_agentic.words import find_pieces, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. has 50 states!", ["The", "U", "S", "has", "50", "states"]),
        ("北京市", ["北", "京", "市"]),
        ("2008年 Beijing", ["2008", "年", "Beijing"]),
        ("iPhone发布会", ["iPhone", "发", "布", "会"]),
        ("東京タワー、日本。", ["東", "京", "タ", "ワ", "ー", "日", "本"]),
        ("人々", ["人", "々"]),
        ("ﾄﾖﾀ", ["ﾄ", "ﾖ", "ﾀ"]),
        ("서울 특별시", ["서울", "특별시"]),
        ("ที่นี่", ["ที่", "นี่"]),
        ("ລາວ", ["ລ", "າ", "ວ"]),
        ("ភូមិ", ["ភូ", "មិ"]),
        ("မြန်မာ", ["မြ", "န်", "မာ"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("Москва, São Tomé", ["Москва", "São", "Tomé"]),
        (unicodedata.normalize("NFD", "Tomé が"), unicodedata.normalize("NFD", "Tomé が").split()),
        ("", []),
        ("?! 。・", []),
    ],
)
def test_words_stay_whole_and_scripts_without_spaces_are_cut_into_characters(text, words):
    assert split_words(text) == words


def test_characters_can_be_taken_two_by_two():
    assert split_words("北京市2008年 Beijing", num_characters=2) == ["北京", "京市", "2008", "年", "Beijing"]
    assert split_words("ที่นี่นี่", num_characters=2) == ["ที่นี่", "นี่นี่"]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("Its area: 1,001 km².", ["Its", "area:", "1,001", "km²."]),
        ("北京，2008年。", ["北", "京，", "2008", "年。"]),
        ("ที่ นี่", ["ที่", "นี่"]),
        ("서울은 크다.", ["서울은", "크다."]),
        ("x" * 60, ["x" * 50, "x" * 10]),
        ("京" + "!" * 20, ["京" + "!" * 9, "!" * 11]),
        (" \n", []),
    ],
)
def test_a_text_can_be_cut_at_spaces_and_between_characters_of_scripts_without(text, pieces):
    assert [piece[0] for piece in find_pieces(text)] == pieces
