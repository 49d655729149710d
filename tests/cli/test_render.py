"""Sizes, ages, counts and tables as text, at any width and without colours."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from rich.console import Console

from ebla.actors.replication.configuration import names
from ebla.cli.frame.render import facts, listing, status
from ebla.cli.tables.scanning import rows_table
from ebla.wording import age, count, size, with_short_nodes


def printed(part: object, width: int = 100) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(part)
    return [line.rstrip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(
    ("bytes", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (10_188, "9.9 KiB"),
        (10_189, "10 KiB"),
        (1 << 20, "1.0 MiB"),
        ((1 << 20) - 1, "1.0 MiB"),
        (5_368_709_120, "5.0 GiB"),
        (1 << 62, "4096 PiB"),
    ],
)
def test_sizes_have_two_to_four_digits(bytes: int | None, text: str) -> None:
    assert size(bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-0.5, "0.0 s"),
        (0.34, "0.3 s"),
        (42, "42 s"),
        (119, "119 s"),
        (180, "3 min"),
        (7200, "2 h"),
        (1e6, "12 d"),
    ],
)
def test_ages_have_one_unit(seconds: float | None, text: str) -> None:
    assert age(seconds) == text


def test_counts_agree_with_their_noun() -> None:
    assert [count(0, "row"), count(1, "row"), count(336_776, "row")] == ["0 rows", "1 row", "336,776 rows"]
    assert count(2, "copy", "copies") == "2 copies"


def test_numbers_align_to_the_right_and_text_to_the_left() -> None:
    assert printed(listing(("NAME", "ROWS>"), [("a", 5), ("flights", 336_776)])) == [
        "NAME        ROWS",
        "a              5",
        "flights  336,776",
    ]


LONG = "a_rather_long_table_name_for_people_events"
NODE = "999c4a43" + "5" * 48


def test_a_name_that_is_too_wide_is_broken_after_a_mark_and_keeps_its_indentation() -> None:
    shown = printed(listing(("NAME", "ROWS>"), [("  " + LONG, 5)]), 30)
    assert shown == [
        "NAME                      ROWS",
        "  a_rather_long_table_       5",
        "  name_for_people_events",
    ]
    assert printed(listing(("NAME", "ROWS>"), [("x" * 30, 5)]), 30)[1:] == ["x" * 24 + "     5", "x" * 6]
    assert printed(facts([("data", "/some/where/else and more")]), 20) == [
        "data  /some/where/",
        "      else and more",
    ]


def test_a_node_id_is_shortened_except_in_a_path() -> None:
    assert printed(listing(("HOST", "ROWS>"), [(NODE, 5)])) == ["HOST      ROWS", "999c4a43     5"]
    assert with_short_nodes(f"tablet-server/{NODE} on {NODE}: /data/{NODE}") == (
        f"tablet-server/999c4a43 on 999c4a43: /data/{NODE}"
    )
    assert names("999c", "uuid", f"tablet-server/{NODE}") and not names(
        "host", "uuid", "tablet-server/host-1"
    )


def test_a_bracket_in_a_name_is_shown_as_it_is() -> None:
    assert "[red]x[/red]" in "\n".join(printed(listing(("NAME",), [("[red]x[/red]",)])))
    assert "timestamp[us,UTC]" in "\n".join(printed(facts([("type", "timestamp[us,UTC]")])))


def test_a_status_without_colour_is_its_word() -> None:
    assert printed(status("UNDER_REPLICATED")) == ["UNDER_REPLICATED"]


def test_rows_show_the_columns_that_fit_and_name_the_others() -> None:
    found = pa.table(
        {"origin": ["JFK", None], "distance": [1, 2475], "note": ["x" * 200, "y"], "last": [1, 2]}
    )
    rendered, left_out = rows_table(found, 60)
    assert printed(rendered, 60) == [
        "origin  distance  note",
        "JFK            1  " + "x" * 37 + "...",
        "null        2475  y",
    ]
    assert left_out == ["last"]


def test_wide_characters_take_two_cells_of_the_width_of_a_row() -> None:
    found = pa.table({"id": [1], "first": ["日" * 30], "second": ["本" * 10], "last": [7]})
    rendered, left_out = rows_table(found, 70)
    assert printed(rendered, 70)[1].split() == ["1", "日" * 18, "...", "本" * 10]
    assert left_out == ["last"]
