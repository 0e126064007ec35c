"""Whatever is typed, the answer is yes, no, or what is wrong and the way out."""

import contextlib
import io

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshplan.app.cli.main import run

JUNK = st.one_of(
    st.sampled_from(
        [
            *[
                "",
                "-1",
                "0",
                "nan",
                "inf",
                "1e999",
                "9" * 30,
                "1,2,,",
                "true",
                "null",
                "[",
                "{a: b}",
            ],
            *["full:0", "none+full", "8k", "8192.5", "--tp", "-", "=", "a=b", "x.y.z=1", "job=3"],
            *["axes.tp=[", "cluster.tiers.0.name=x", "model.config=3", "job.total_tokens=-1"],
            *["cluster.gpus=0", "axes.zero=7", "frameworks=[]", "top=0", "job.precision=int4"],
        ]
    ),
    st.text(max_size=12),
    st.integers(-3, 20).map(str),
)
OPTIONS = st.sampled_from(
    [
        *[
            "--cluster",
            "--seq-len",
            "--global-batch",
            "--profile",
            "--set",
            "--tp",
            "--pp",
            "--vpp",
        ],
        *["--cp", "--ep", "--etp", "--micro-batch", "--zero", "--recompute", "--schedule"],
        *["--framework"],
    ]
)
JOB = ["llama-3.1-8b", "--cluster", "8xH100", "--seq-len", "4096", "--global-batch", "64"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    verb=st.sampled_from(["estimate", "estimate", "explain"]),
    pairs=st.lists(st.tuples(OPTIONS, JUNK), min_size=1, max_size=3),
    lang=st.sampled_from(["en", "zh"]),
)
def test_junk_is_an_answer_or_a_complaint(verb, pairs, lang):
    # explain without a plan searches, which is slow; a degree makes it judge one plan
    argv = [verb, *JOB, "--tp", "1", *(word for pair in pairs for word in pair), "--lang", lang]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(argv)
    assert code in (0, 1, 2), (argv, err.getvalue())
    if code == 2:
        assert ("hint: " if lang == "en" else "提示：") in err.getvalue()
    else:
        assert out.getvalue()


@settings(max_examples=100, deadline=None)
@given(argv=st.lists(st.one_of(st.text(max_size=8), OPTIONS), max_size=4))
def test_words_that_mean_nothing(argv):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(argv)
    assert code in (0, 1, 2), (argv, err.getvalue())
