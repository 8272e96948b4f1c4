"""What is written beside a measurement, so that it can be repeated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moon_diffusers.evidence import repeat


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_revision_of_a_checkout_and_outside_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "moon_diffusers"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.setattr(repeat.moon_diffusers, "__file__", str(package / "__init__.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("MOON_REVISION", raising=False)
    assert repeat.git_revision() is None
    monkeypatch.setenv("MOON_REVISION", "abc")
    assert repeat.git_revision() == "abc"
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    head = git(tmp_path, "rev-parse", "HEAD")[:12]
    assert repeat.git_revision() == head
    (package / "__init__.py").write_text("x = 1\n")
    assert repeat.git_revision() == head + "+"


def test_software_names_what_is_there_and_what_is_not() -> None:
    facts = repeat.software()
    assert facts["diffusers"] == repeat.distribution("diffusers") is not None
    assert repeat.distribution("no-such-package-at-all") is None
