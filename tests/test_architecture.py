"""What docs/architecture.md says must never be: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import moon_diffusers

PACKAGE = Path(moon_diffusers.__file__).parent


def imports_of(path: Path, package: Path = PACKAGE) -> set[str]:
    """Every absolute dotted name that a file imports, wherever in the file it does."""
    folder = path.relative_to(package.parent).parts[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(folder[: len(folder) - node.level + 1]) if node.level else ""
            base = ".".join(filter(None, (base, node.module)))
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def offenders(files: list[Path], forbidden: tuple[str, ...], package: Path = PACKAGE) -> list[str]:
    return [
        f"{path.relative_to(package)} imports {name}"
        for path in files
        for name in sorted(imports_of(path, package))
        if any(name == prefix or name.startswith(f"{prefix}.") for prefix in forbidden)
    ]


def files_of(*patterns: str) -> list[Path]:
    files = [path for pattern in patterns for path in PACKAGE.glob(pattern)]
    assert files, f"nothing matches {patterns}: the rule would check nothing"
    return files


M = "moon_diffusers"
RULES = {
    "runtime and planning know no torch": (
        ("runtime/*.py", "planning*.py", "routing.py", "problem.py"),
        ("torch", "diffusers", "transformers", f"{M}.ops", f"{M}.dispatch", f"{M}.functional"),
    ),
    "routing and planning touch no device": (("routing.py", "planning*.py", "problem.py"), (f"{M}.runtime",)),
    "integrations reach no deeper than the operators": (
        ("integrations/**/*.py",),
        (f"{M}.dispatch", f"{M}.runtime", f"{M}.planning", f"{M}.routing", f"{M}.fallback"),
    ),
    "quality knows videos, not kernels": (
        ("quality/**/*.py",),
        tuple(
            f"{M}.{room}" for room in ("ops", "dispatch", "functional", "runtime", "integrations", "generation", "cli")
        ),
    ),
    "evidence knows no diffusers": (
        ("evidence/**/*.py",),
        ("diffusers", f"{M}.integrations", f"{M}.generation", f"{M}.end_to_end"),
    ),
    "whole pipelines are timed through public names alone": (
        ("end_to_end/*.py",),
        tuple(f"{M}.{room}" for room in ("ops", "dispatch", "runtime", "planning", "routing", "integrations", "cli")),
    ),
    "the corridor imports nothing beside it": (
        # All but __main__.py, which is the command line.
        ("[!_]*.py", "__init__.py", "runtime/*.py", "integrations/**/*.py"),
        tuple(f"{M}.{room}" for room in ("cli", "quality", "generation", "evidence", "emulator", "end_to_end")),
    ),
}


@pytest.mark.parametrize("rule", list(RULES))
def test_rule(rule):
    patterns, forbidden = RULES[rule]
    assert offenders(files_of(*patterns), forbidden) == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("import moon_diffusers.ops", True),
        ("from moon_diffusers import ops", True),
        ("from .. import ops", True),
        ("from ..ops import attention", True),
        ("def f():\n    from moon_diffusers.ops import attention", True),
        ("from moon_diffusers.opsy import x", False),
    ],
)
def test_the_scan_sees_every_form_of_import(tmp_path, text, seen):
    file = tmp_path / "moon_diffusers" / "quality" / "a.py"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert bool(offenders([file], ("moon_diffusers.ops",), file.parents[1])) is seen
