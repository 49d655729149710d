"""The site of `make docs`: every page is there, and the reference shows the docstrings."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", "docs", "benchmarks/RESULTS.md")


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A directory with the pages and the configuration, as the Makefile lays them out."""
    pages = tmp_path / "build" / "docs"
    for name in PAGES:
        target = pages / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, target)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    return tmp_path


def build(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "zensical"), "build", "--strict"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=600)


def test_the_site_has_every_page_and_the_docstrings(copied: Path) -> None:
    done = build(copied)
    assert done.returncode == 0, done.stdout + done.stderr
    site = copied / "build" / "site"
    made = {str(path.relative_to(site).with_suffix("")) for path in site.rglob("*.html")} - {"404", "index"}
    assert made == {
        "CONTRIBUTING",
        "benchmarks/RESULTS",
        *(f"docs/{page.stem}" for page in (ROOT / "docs").glob("*.md")),
    }
    reference = (site / "docs" / "reference.html").read_text()
    text = re.sub(r"\s+", " ", re.sub("<[^>]+>", "", reference))
    assert "Insert rows; a row whose key exists is replaced as a whole." in text
    assert re.findall(r"\bm\.[A-Z]\w+", text) == [], "names of results are those of their entries"
    for name in ("TableInfo", "TableSummary", "ServerStatus", "MasterStatus"):
        assert f'id="ebla.actors.messages.{name}"' in reference
    assert 'id="ebla.Table.delete"' in reference and "Built-in" not in text


def test_a_broken_link_ends_the_build(copied: Path) -> None:
    pages = copied / "build" / "docs" / "docs"
    (pages / "reference.md").write_text("# API\n")  # without it the build is quick
    (pages / "glossary.md").write_text("[broken](no-such-page.md)\n")
    done = build(copied)
    assert done.returncode != 0
    assert "page does not exist" in done.stderr and "glossary.md" in done.stderr
