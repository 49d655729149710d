"""The docs use one word per idea, from docs/glossary.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import ROOT

GLOSSARY = ROOT / "docs" / "glossary.md"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WIDTH = 100

EXEMPT = {"Words not to use"}


def section(title: str) -> str:
    return GLOSSARY.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def prose(page: Path) -> Iterator[tuple[int, str, str]]:
    """List the number, text and section title of every line outside of code."""
    title, code = "", False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            title = line.lstrip("# ") if line.startswith("#") else title
            yield number, line, title


def test_terms_are_unique_and_in_alphabetical_order() -> None:
    terms = [term for term, _, _ in rows("Terms")]
    assert len(terms) > 50
    assert terms == sorted(dict.fromkeys(terms), key=str.lower)


def test_every_term_names_a_module_that_exists() -> None:
    named = {term: re.fullmatch("`(.+)`", module) for term, _, module in rows("Terms")}
    assert [term for term, found in named.items() if not found or not (ROOT / found[1]).is_file()] == []


def test_every_meaning_is_a_sentence() -> None:
    assert [term for term, meaning, _ in rows("Terms") if not re.fullmatch(r"[A-Z].*\.", meaning)] == []


@pytest.mark.parametrize(("words", "instead"), rows("Words not to use"))
def test_no_page_uses_a_word_that_the_glossary_replaces(words: str, instead: str) -> None:
    banned = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, words.split(', ')))})(?![\w-])", re.IGNORECASE)
    found = [
        f"{page.name}:{number}: {match[0]}; better: {instead}"
        for page in PAGES
        for number, line, title in prose(page)
        if title not in EXEMPT
        for match in banned.finditer(re.sub("`[^`]*`", "", line))
    ]
    assert found == []


def test_lines_of_prose_are_wrapped() -> None:
    found = [
        f"{page.name}:{number}"
        for page in PAGES
        for number, line, _ in prose(page)
        if len(line) > WIDTH and not line.startswith("|")
    ]
    assert found == []
