"""Write down which options nanotron's config has, for the tests that have no checkout.

``nanotron_options.py CHECKOUT > tests/data/nanotron_options.json`` reads the dataclasses of its
config as text. The nearest package, 0.4 of 2024, knows other options than the later commit that is
written for; the loader itself judges the output where ``NANOTRON`` names a checkout.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

FILES = ("config.py", "parallelism_config.py", "models_config.py")


def options_of(text: str) -> dict[str, dict[str, str]]:
    """Dataclass -> option -> type as it is written."""
    classes = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {
            item.target.id: ast.unparse(item.annotation)
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in classes
        if any("dataclass" in ast.unparse(mark) for mark in node.decorator_list)
    }


def main() -> None:
    """Print the options of a checkout with its commit."""
    checkout = Path(sys.argv[1])
    folder = checkout / "src" / "nanotron" / "config"
    options: dict[str, dict[str, str]] = {}
    for name in FILES:
        options |= options_of((folder / name).read_text(encoding="utf-8"))
    commit = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    source = "huggingface/nanotron, src/nanotron/config/{" + ",".join(FILES) + "}"
    print(json.dumps({"source": source, "commit": commit, "options": options}, indent=1))


if __name__ == "__main__":
    main()
