"""What the two READMEs say about the code is so."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "meshplan"
READMES = ["README.md", "README.zh.md"]
FOLDER_READMES = sorted(SOURCE.rglob("README.md"))
PLACE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.py): (\w+)(?:\(\))?`")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def defined(path: str) -> set[str]:
    tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def chains(name: str) -> list[list[tuple[str, str]]]:
    items = re.findall(r"^- (`.*?)(?=\n-|\n\n)", read(name), re.DOTALL | re.MULTILINE)
    found = [PLACE.findall(item) for item in items if " > " in item]
    return [chain for chain in found if len(chain) > 1]


@pytest.mark.parametrize("name", READMES)
def test_places_exist(name):
    places = PLACE.findall(read(name))
    assert len(places) > 10
    assert [f"{path}: {what}" for path, what in places if what not in defined(path)] == []
    for folder in re.findall(r"`((?:[a-z_]+/)+)`", read(name)):
        assert (SOURCE / folder).is_dir() or (ROOT / folder).is_dir(), folder


@pytest.mark.parametrize(
    "readme", FOLDER_READMES, ids=lambda path: str(path.parent.relative_to(SOURCE))
)
def test_folders_name_what_they_hold(readme):
    """A path may start at the package or the repository; a bare name is of this folder."""
    text = readme.read_text(encoding="utf-8")
    assert text.startswith("# ")
    places = PLACE.findall(text)
    assert [f"{path}: {what}" for path, what in places if what not in defined(path)] == []
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|yaml|json|npz|csv|js))`", text)
    near = (readme.parent, readme.parent.parent, SOURCE, ROOT)
    missing = {n for n in named if not any((folder / n).exists() for folder in near)}
    missing = {n for n in missing if not any(readme.parent.rglob(n))}
    assert missing <= {"config.json"}  # what a person gives


@pytest.mark.parametrize("name", READMES)
def test_each_step_of_a_chain_uses_the_next(name):
    assert len(chains(name)) == 6
    for chain in chains(name):
        for (path, _), (target, what) in pairwise(chain):
            text = (SOURCE / path).read_text(encoding="utf-8")
            if path != target:
                module = target.removesuffix(".py").replace("/", ".")
                package = module.rpartition(".")[0]
                imported = rf"from meshplan\.({re.escape(module)}|{re.escape(package)}) import"
                assert re.search(imported, text), (path, target)
            assert re.search(rf"\b{what}\b", text), (path, what)


@pytest.mark.parametrize("name", [*READMES, "CONTRIBUTING.md"])
def test_the_order_of_imports_is_the_one_that_is_checked(name):
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    layers = next(c for c in contracts if c["type"] == "layers")["layers"]
    assert f"`{' > '.join(layers)}`" in read(name)


def test_both_readmes_name_the_same_places():
    assert PLACE.findall(read(READMES[0])) == PLACE.findall(read(READMES[1]))
