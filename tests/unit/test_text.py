"""Both languages say the same things, with the same numbers."""

import ast
import errno
import os
import re
import string
from pathlib import Path

import pytest

from meshplan.errors import os_reason
from meshplan.text import LANGUAGES, catalog, has, t
from meshplan.text.quantity import dress, one_of_many

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
        ("step_time_s", 144.9, "145 s"),
        ("step_time_s", 750.0, "12.5 min"),
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


SOURCE = Path(__file__).resolve().parents[2] / "src" / "meshplan"


def raised_errors() -> list[tuple[str, str, set[str] | None]]:
    """``(place, code, values)`` of each error with a literal code; None for ``**values``."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            match node.func:
                case ast.Attribute(value=ast.Name(id="UserError"), attr="of"):
                    suffixes, extra = ("",), set()
                case ast.Attribute(attr="add") if any(k.arg == "where" for k in node.keywords):
                    suffixes, extra = ("",), set()
                case ast.Name(id="unknown"):
                    suffixes, extra = ("", "_far"), {"nearest"}
                case _:
                    continue
            match node.args:
                case [ast.Constant(value=str(code)), *_]:
                    given = {k.arg for k in node.keywords}
                    values = None if None in given else {str(name) for name in given} | extra
                    place = f"{path.relative_to(SOURCE)}:{node.lineno}"
                    found += [(place, code + suffix, values) for suffix in suffixes]
    return found


def test_every_error_that_is_raised_has_its_sentences_and_their_values():
    raised = raised_errors()
    assert len(raised) > 50
    wrong = []
    for place, code, values in raised:
        for full in (f"error.{code}", f"hint.{code}"):
            if full not in EN:
                wrong.append(f"{place}: no {full}")
            elif values is not None:
                missing = placeholders(EN[full]) - values - {"where", "key", "value", "allowed"}
                wrong += [f"{place}: {full} mentions {name}" for name in sorted(missing)]
    assert wrong == []


# flags of the frameworks themselves, not ours
FRAMEWORK_FLAGS = {"--microbatch-group-size-per-virtual-pipeline-stage"}


def test_every_note_on_a_trace_has_its_sentence():
    made = {
        code
        for path in (SOURCE / "diagnose").rglob("*.py")
        for code in re.findall(r'Note\(\s*code="(\w+)"', path.read_text(encoding="utf-8"))
    }
    assert "host_ahead" in made
    assert sorted(code for code in made if not has(f"diagnose.note.{code}", "en")) == []


def test_ways_out_name_options_and_verbs_that_exist():
    from meshplan.app.cli.commands import VERBS, load_verb

    known = {option for verb in VERBS for p in load_verb(verb).params for option in p.opts}
    known |= {"--help", "--lang", *VERBS, *FRAMEWORK_FLAGS}
    wrong = []
    for lang, sentences in (("en", EN), ("zh", ZH)):
        for code, sentence in sentences.items():
            if code.startswith("hint."):
                named = re.findall(r"(?<![\w-])--[a-z][a-z-]+|(?<=meshplan )[a-z]+\b", sentence)
                wrong += [f"{lang} {code}: {name}" for name in named if name not in known]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1 GPUs in each machine", "1 GPU in each machine"),
        ("11 GPUs, 2,001 steps, 0.1 days", "11 GPUs, 2,001 steps, 0.1 days"),
        ("1 micro-batches for 1 stages", "1 micro-batch for 1 stage"),
        ("1 smaller ones", "1 smaller one"),
        ("pp 64 * vpp 1 stages", "pp 64 * vpp 1 stages"),
        ("tp 1 * cp 1 of 8x1 nodes", "tp 1 * cp 1 of 8x1 nodes"),
    ],
)
def test_one_of_many(text, said):
    assert one_of_many(text) == said


def test_a_sentence_counts_one_in_the_singular():
    assert t("assumed.cluster_gpus_per_node", "en", value="1") == "1 GPU in each machine"
    assert t("assumed.cluster_gpus_per_node", "en", value="8") == "8 GPUs in each machine"


def test_a_chinese_name_meets_chinese_without_a_blank():
    said = t("reason.degree_same", "zh", knob="重计算", before="full", after="none")
    assert said.startswith("重计算由 full 改为 none")


@pytest.mark.parametrize("lang", LANGUAGES)
def test_errors_of_the_system_are_said_and_unknown_ones_keep_their_name(lang):
    absent = os_reason(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    assert catalog(lang)["os.ENOENT"] in t(
        "error.trace.unreadable", lang, where="a", os_reason=absent
    )
    odd = os_reason(OSError(errno.ENOTTY, os.strerror(errno.ENOTTY)))
    assert "ENOTTY" in t("error.trace.unreadable", lang, where="a", os_reason=odd)
