"""Whatever a file holds, reading it ends with a reading or with one clear complaint."""

from hypothesis import example, given
from hypothesis import strategies as st

from meshplan.check.read import read_text
from meshplan.check.records import Reading, Source
from meshplan.check.shell import commands
from meshplan.errors import ProblemList, UserError

PIECES = st.sampled_from(
    [
        "--tensor-model-parallel-size",
        "--num-layers",
        "--parallelism.tensor_parallel_degree=",
        "--micro-batch-size 1",
        "A=",
        "A+=",
        "A=(",
        ")",
        '"',
        "'",
        "$A",
        "${A[@]}",
        "${A:-1}",
        "$((",
        "))",
        "$(",
        "`",
        "\\",
        "\n",
        " ",
        "<<EOF",
        "#",
        "8",
        "999999999999999999",
        "\ufffd",
    ]
)
SCRIPTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=200)


@given(SCRIPTS)
@example("A=$A\n" * 50 + "run --x $A")
@example("--num-layers " + "9" * 400)
def test_scripts_are_read_or_refused(script):
    try:
        words = [word for command in commands(Source(name="s", text=script)) for word in command]
    except UserError as error:
        assert all(problem.where.startswith("s:") for problem in error.problems)
        return
    lines = script.count("\n") + 1
    assert all(1 <= word.line <= lines for word in words)


@given(
    SCRIPTS,
    st.sampled_from(["x.sh", "x.json", "x.yaml", "x.toml"]),
    st.sampled_from(["", "{", "[parallelism]\n", "parallelism:\ntokens:\n", "distributed_type: "]),
)
def test_files_are_read_or_refused(content, name, start):
    problems = ProblemList()
    try:
        reading = read_text(Source(name=name, text=start + content), problems=problems)
        problems.raise_if_any()
    except UserError as error:
        assert all(problem.where for problem in error.problems)
        return
    assert isinstance(reading, Reading)
