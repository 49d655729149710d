"""Reads the EDN of exported histories: nil, booleans, numbers, strings, keywords, vectors, maps."""

from __future__ import annotations

import re
from typing import Any

TOKEN = re.compile(
    r"""[\s,]*(?:
        (?P<open>[\[{])|(?P<close>[\]}])
        |"(?P<text>(?:[^"\\]|\\.)*)"
        |(?P<keyword>:[a-zA-Z*!_?<>=+.-][\w*!?<>=+.-]*)
        |(?P<float>[+-]?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+))
        |(?P<int>[+-]?\d+)N?
        |(?P<word>nil|true|false)
    )""",
    re.VERBOSE | re.DOTALL,
)
WORDS = {"nil": None, "true": True, "false": False}
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


class Keyword(str):
    """`:word`; never equal to the text "word"."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyword) and str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((Keyword, str(self)))

    def __repr__(self) -> str:
        return f":{self!s}"


def read_edn(text: str) -> list[Any]:
    """Every value in the text."""
    values, place = [], 0
    end = len(text.rstrip(" \n,"))
    while place < end:
        value, place = _read(text, place)
        values.append(value)
    return values


def _read(text: str, place: int) -> tuple[Any, int]:
    found = TOKEN.match(text, place)
    assert found, f"not EDN: {text[place : place + 30]!r}"
    kind, word, place = found.lastgroup, found.group(found.lastgroup or 0), found.end()
    if kind == "open":
        items = []
        closing = "]" if word == "[" else "}"
        while not (closed := _closes(text, place, closing)):
            item, place = _read(text, place)
            items.append(item)
        if word == "[":
            return items, closed
        assert len(items) % 2 == 0, "a map has a value for each key"
        return dict(zip(items[::2], items[1::2], strict=True)), closed
    assert kind != "close", f"nothing to close at {place}"
    if kind == "text":
        return re.sub(r"\\(.)", lambda escape: ESCAPES[escape.group(1)], word, flags=re.DOTALL), place
    if kind == "keyword":
        return Keyword(word[1:]), place
    if kind == "word":
        return WORDS[word], place
    return (float(word) if kind == "float" else int(word)), place


def _closes(text: str, place: int, closing: str) -> int:
    found = TOKEN.match(text, place)
    return found.end() if found and found.group("close") == closing else 0
