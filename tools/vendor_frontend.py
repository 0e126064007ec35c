"""Rebuild ``static/vendor.js`` and the copy of axe that the tests use.

Needs npm. Nothing else does: the bundle is committed, and the page is served as it stands.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "tools" / "vendor_frontend"
STATIC = ROOT / "src" / "meshplan" / "app" / "web" / "static"
TESTS = ROOT / "tests" / "web"


def main() -> None:
    """Install what package.json names, bundle it, and copy it to its places."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name in ("package.json", "entry.js"):
            shutil.copy(RECIPE / name, work / name)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund"], cwd=work, check=True)
        modules = work / "node_modules"
        command = [str(modules / ".bin" / "esbuild"), "entry.js", "--bundle", "--minify"]
        command += ["--format=esm", "--target=es2022", "--outfile=vendor.js"]
        subprocess.run(command, cwd=work, check=True)
        wanted = json.loads((RECIPE / "package.json").read_text(encoding="utf-8"))
        names = ", ".join(f"{name} {version}" for name, version in wanted["dependencies"].items())
        head = f"/* {names}; licences in vendor.LICENSE.txt; made by tools/vendor_frontend.py */\n"
        bundle = (work / "vendor.js").read_text(encoding="utf-8")
        (STATIC / "vendor.js").write_text(head + bundle, encoding="utf-8")
        licences = [
            f"{name} {version}\n\n{(modules / name / 'LICENSE').read_text(encoding='utf-8')}"
            for name, version in wanted["dependencies"].items()
        ]
        (STATIC / "vendor.LICENSE.txt").write_text("\n\n".join(licences), encoding="utf-8")
        shutil.copy(modules / "axe-core" / "axe.min.js", TESTS / "axe.min.js")


if __name__ == "__main__":
    main()
