"""Habits that nobody keeps without a test: small modules, complete ``__all__``, honest units."""

import ast
import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "meshplan"
MODULES = sorted(SOURCE.rglob("*.py"))
MODULE_IDS = [str(path.relative_to(SOURCE)) for path in MODULES]
MOST_LINES = 400
PUBLIC = (SOURCE / "__init__.py", SOURCE / "thumb" / "__init__.py")
"""People import from these: what they export may have no other user."""
CHAPTER_FUNCTIONS = SOURCE / "learn" / "numbers"
"""What stands here is called by chapters of the guide, which a test of its own looks after."""
LONG_FUNCTION = 60
FEW_LONG_FUNCTIONS = 0.02


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def exported(module: ast.Module) -> list[str] | None:
    for node in module.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            value = ast.literal_eval(node.value)
            assert isinstance(value, list)
            return value
    return None


def bound_names(module: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names |= {(a.asname or a.name).split(".")[0] for a in node.names}
        elif isinstance(node, ast.Assign):
            targets = [inner for target in node.targets for inner in ast.walk(target)]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_modules_stay_small(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_all_is_complete(path):
    module = tree(path)
    public = {
        node.name
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
    }
    names = exported(module)
    if names is None:
        assert not public, f"{path.name} defines {sorted(public)} and has no __all__"
        return
    assert sorted(public - set(names)) == [], "public, but not in __all__"
    assert sorted(set(names) - bound_names(module)) == [], "in __all__, but not defined"
    assert len(names) == len(set(names))


def defined(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Names of the top level; a decorated function is in the hands of its decorator."""
    for node in module.body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name, decorator_list=[]):
                yield name, node
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name, node


def loads(node: ast.AST) -> Counter[str]:
    found = (n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))
    return Counter(n.id for n in found)


def test_no_name_is_there_for_tests_alone():
    files = [*MODULES, *sorted((ROOT / "tools").rglob("*.py"))]
    trees = {path: tree(path) for path in files}
    elsewhere: set[str] = set()
    for path, module in trees.items():
        passes_on = path.name == "__init__.py" and path not in PUBLIC
        elsewhere |= set(loads(module)) if passes_on else set()
        for node in ast.walk(module):
            if isinstance(node, ast.Attribute):
                elsewhere.add(node.attr)
            elif isinstance(node, ast.ImportFrom) and not passes_on:
                elsewhere |= {alias.name for alias in node.names}
    unused = [
        f"{path.relative_to(SOURCE)}: {name}"
        for path in MODULES
        if path.parent != CHAPTER_FUNCTIONS
        for name, node in defined(trees[path])
        if not name.startswith("__") and name not in elsewhere
        if loads(trees[path])[name] == loads(node)[name]
    ]
    assert unused == []


def test_functions_stay_short():
    lengths = {}
    for path, name in zip(MODULES, MODULE_IDS, strict=True):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                docs = ast.get_docstring(node) or ""
                lines = (node.end_lineno or 0) - node.lineno + 1 - len(docs.splitlines())
                lengths[f"{name}:{node.name}"] = lines
    longest = sorted(lengths.items(), key=lambda item: -item[1])[:10]
    print("longest functions:", *longest, sep="\n  ")
    long = [name for name, lines in lengths.items() if lines > LONG_FUNCTION]
    assert len(long) <= FEW_LONG_FUNCTIONS * len(lengths), long


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in MODULES}),
    ids=lambda folder: str(folder.relative_to(SOURCE.parent)),
)
def test_every_folder_says_why_it_exists(folder):
    if folder == SOURCE:
        return  # the README of the repository says it
    readme = folder / "README.md"
    assert readme.exists(), f"{folder.relative_to(ROOT)} has no README.md"
    assert len(readme.read_text(encoding="utf-8").split()) >= 20


@pytest.mark.parametrize("path", MODULES, ids=MODULE_IDS)
def test_no_gb_label_on_a_1024_figure(path):
    binary = re.compile(r"\bGIB\b|2 ?\*\* ?30|1 ?<< ?30|1024 ?\*\* ?3|1073741824")
    label = re.compile(r"""\bGB\b(?!/s)[^"']*["']""")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        code = line.split("#")[0]
        assert not (binary.search(code) and label.search(code)), f"{path}:{number}: {line}"


def test_sentences_name_memory_in_gib():
    """Only what is stated per 1e9 may say GB: the rule of thumb and bandwidth."""
    wrong = []
    for file in sorted((SOURCE / "text" / "catalog").rglob("*.json")):
        for code, sentence in json.loads(file.read_text(encoding="utf-8")).items():
            for name in re.findall(r"\{(\w+)[^}]*\}\s*GB(?!/s)", sentence):
                if not name.endswith("_gb"):
                    wrong.append((file.name, code))
    assert wrong == []


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_no_path_of_one_machine():
    machine = re.compile(r"(?<![\w.])/(?:work|root|home/\w+|tmp)/\w")
    allowed = {Path(__file__)}
    found = []
    for path in tracked_files():
        if path in allowed or not path.is_file() or path.stat().st_size > 1_000_000:
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        name = str(path.relative_to(ROOT))
        hits = [m.group() for m in machine.finditer(text)]
        # a test may make up a path; what ships and what is read may not
        found += [f"{name}: {h}" for h in hits if not (name.startswith("tests/") and "/tmp/" in h)]
    assert found == []


def test_version_and_changelog_agree():
    from meshplan import __version__

    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released[0] == __version__
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()
