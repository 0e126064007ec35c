"""Both languages say the same things, with the same numbers."""

import re
import string

import pytest

from meshplan.text import LANGUAGES, catalog, has, t
from meshplan.text.quantity import dress

NAMES = {"Accelerate", "Ulysses", "Muon", "Adafactor", "Mamba"}
EN, ZH = (catalog(lang) for lang in LANGUAGES)


def placeholders(sentence: str) -> set[str]:
    return {name.split(".")[0] for _, name, _, _ in string.Formatter().parse(sentence) if name}


def test_both_languages_have_every_code():
    assert sorted(EN.keys() ^ ZH.keys()) == []


def test_both_languages_mention_the_same_values():
    differ = {code for code in EN if placeholders(EN[code]) != placeholders(ZH[code])}
    assert sorted(differ) == []


def test_every_error_has_a_hint():
    errors = {code.removeprefix("error.") for code in EN if code.startswith("error.")}
    hints = {code.removeprefix("hint.") for code in EN if code.startswith("hint.")}
    assert sorted(errors ^ hints) == []


def starts_like_prose(sentence: str) -> bool:
    """A capital that is no name: Megatron-LM, DeepSpeed and FSDP2 keep theirs."""
    first = sentence.split()[0].strip(":,")
    inner = sum(letter.isupper() for letter in first[1:])
    return first[0].isupper() and not inner and first not in NAMES


def test_errors_are_lower_case_sentences_without_a_full_stop():
    bad = [
        code
        for code, sentence in EN.items()
        if code.startswith(("error.", "hint."))
        and (starts_like_prose(sentence) or sentence.endswith("."))
    ]
    assert bad == []


def test_chinese_is_chinese():
    """Several English words in a row were left untranslated; names, formulas, commands may stay."""
    left = [
        code
        for code, sentence in ZH.items()
        if sentence.isascii()
        and len(re.findall(r"(?<![{<=*] )\b[a-z]{3,}\b", sentence)) > 3
        and not re.search(r"[=*]", sentence)
    ]
    assert left == []


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("peak_bytes", 61.25 * 2**30, "61.2 GiB"),
        ("step_time_s", 13.2, "13.2 s"),
        ("link_bytes_per_s", 450e9, "450 GB/s"),
        ("peak_flop_per_s", 989e12, "989 TFLOP/s"),
        ("num_tokens", 8388608, "8.389M"),
        ("lost_fraction", 0.125, "12%"),
        ("tp", 8, "8"),
        ("ratio", 1 / 3, "0.3333"),
        ("tokens_per_s", 4096, "4096"),
        ("legal", (1, 2, 4), "1, 2, 4"),
        ("name", "H100", "H100"),
        ("peak_bytes", float("nan"), "nan"),
    ],
)
def test_a_name_says_how_its_number_prints(name, value, shown):
    assert f"{dress(name, value)}" == shown


def test_a_sentence_may_format_a_number_itself():
    assert f"{dress('peak_bytes', 1e9):.1e}" == "1.0e+09"


def test_missing_codes_and_values_are_our_mistake():
    assert not has("no.such.code", "en")
    with pytest.raises(KeyError):
        t("no.such.code", "en")
    with pytest.raises(KeyError):
        t("error.usage_missing_value", "en")
