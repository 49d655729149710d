"""The site of `make docs`: every page is there, and the reference shows the docstrings."""

from __future__ import annotations

import pydoc
import re
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import msgspec
import pytest

from ebla.actors.replication.configuration import Forced
from ebla.storage.schema import TableSchema
from tests.source import ROOT

OF_STORAGE = (TableSchema, Forced)  # programs of users need none of their fields
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
    assert "grows by one with every alteration" in text and "Alias for field" not in text
    assert re.search(r"replicas int The copies", text), "fields have types"
    assert 'id="ebla.Table.delete"' in reference and "Built-in" not in text


def entries() -> list[type]:
    """The classes of the reference."""
    names = re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference.md").read_text(), re.M)
    return [each for each in map(pydoc.locate, names) if isinstance(each, type)]


def fields_of(kind: type) -> tuple[str, ...]:
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    return getattr(kind, "_fields", ())


def test_results_describe_each_of_their_fields() -> None:
    results = [kind for kind in entries() if fields_of(kind)]
    assert len(results) > 20
    for kind in results:
        section = (kind.__doc__ or "").partition("Attributes:\n")[2]
        assert tuple(re.findall(r"^ +(\w+): \S", section, re.M)) == fields_of(kind), kind


def test_results_of_results_are_in_the_reference() -> None:
    results = {kind for kind in entries() if fields_of(kind)}
    for kind in results:
        for field, hint in typing.get_type_hints(kind).items():
            for part in (hint, *typing.get_args(hint)):
                if isinstance(part, type) and fields_of(part):
                    assert part in results or part in OF_STORAGE, f"{kind.__name__}.{field}"


def test_a_broken_link_ends_the_build(copied: Path) -> None:
    pages = copied / "build" / "docs" / "docs"
    (pages / "reference.md").write_text("# API\n")  # without it the build is quick
    (pages / "glossary.md").write_text("[broken](no-such-page.md)\n")
    done = build(copied)
    assert done.returncode != 0
    assert "page does not exist" in done.stderr and "glossary.md" in done.stderr
