"""`make contracts`: which contracts of the specification have no marked test.

The contracts that this version answers for are listed in `docs/contracts.txt`, a line each: the id and what it
promises in a few words. Tests are read, not run.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def promised() -> dict[str, str]:
    """Id → words, in the order of the list."""
    found: dict[str, str] = {}
    for line in (ROOT / "docs" / "contracts.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, words = line.partition(" ")
            found[name] = words.strip()
    return found


def marked() -> dict[str, list[str]]:
    """Id → the tests that are marked with it."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr != "contract":
                continue
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    found.setdefault(argument.value, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def main() -> int:
    """Print what has no test, and what is marked but not promised."""
    wanted, have = promised(), marked()
    missing = [name for name in wanted if name not in have]
    for name in missing:
        sys.stdout.write(f"no test  {name:8} {wanted[name]}\n")
    sys.stdout.write(f"{len(wanted) - len(missing)} of {len(wanted)} contracts have a test.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
