"""The settings of a deployment: what is taken, what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from ebla.placement.config import DeploymentConfig, configure, read_file
from ebla.storage.errors import InvalidArgument


def test_the_defaults_are_valid_and_absolute() -> None:
    config = configure({})
    assert config.namespace == "ebla-ebla"
    assert Path(config.data_dir) == Path.home() / ".ebla" / "ebla"
    assert config.masters == 1 and config.slots == ()


def test_a_file_and_flags_are_laid_over_what_was_saved_table_by_table(tmp_path: Path) -> None:
    file = tmp_path / "ebla.yaml"
    file.write_text("slots: [a, b, c]\ntablet_server:\n  memtable_bytes: 1000000\n  heartbeat_s: 0.25\n")
    saved = configure(read_file(file), configure({"name": "fleet", "data_dir": str(tmp_path)}))
    config = configure({"tablet_server": {"memtable_bytes": 2_000_000, "heartbeat_s": None}}, saved)
    assert (config.name, config.slots, config.data_dir) == ("fleet", ("a", "b", "c"), str(tmp_path))
    assert config.tablet_server == {"memtable_bytes": 2_000_000}


def test_role_options_get_the_settings_and_their_place() -> None:
    config = configure({"tablet_server": {"heartbeat_s": 0.2}, "master": {"unresponsive_s": 3}})
    options = config.tablet_server_options(("master/0",), "host-1", "9.9")
    assert (options.heartbeat_s, options.masters, options.host, options.version) == (
        0.2,
        ("master/0",),
        "host-1",
        "9.9",
    )
    assert config.master_options().unresponsive_s == 3


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"slot": ["a"]}, "slot is no setting; did you mean slots"),
        (
            {"tablet_server": {"memtable": 1}},
            r"tablet_server.memtable is no setting; did you mean tablet_server.memtable_bytes",
        ),
        ({"tablet_server": {"host": "x"}}, "tablet_server.host is no setting"),
        (
            {"tablet_server": {"memtable_bytes": "64M"}},
            r"tablet_server.memtable_bytes: expected `int`, got `str`",
        ),
        ({"tablet_server": {"memtable_bytes": 0}}, "tablet_server: memtable_bytes must be above 0"),
        ({"master": {"journal": "floppy"}}, "master: journal must be one of"),
        ({"masters": "three"}, "masters: expected `int`, got `str`"),
        ({"masters": 0}, "masters must be at least 1"),
        ({"masters": 3}, "masters must be 1 while master.journal is local"),
        ({"masters": 2, "slots": ["a"]}, "slots names 1 hosts"),
        ({"slots": ["a", "b", "a"]}, "slots names a twice"),
        ({"name": "No Spaces"}, "name must be"),
        ({"data_dir": "/d", "data_dirs": ["/d", "/e"]}, "data_dirs must not repeat data_dir"),
        ({"tablet_server": 7}, "tablet_server: expected `object`, got `int`"),
    ],
)
def test_a_refusal_names_the_setting_and_the_remedy(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        configure(settings)


@pytest.mark.parametrize(
    ("text", "words"),
    [("- a\n- b\n", "must hold `key: value` settings, not a list"), ("a: [", "is not YAML")],
)
def test_a_file_that_is_no_table_of_settings_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "ebla.yaml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=words):
        read_file(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot read .*none.yaml"):
        read_file(tmp_path / "none.yaml")


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    file = tmp_path / "ebla.yaml"
    file.write_text("# nothing yet\n")
    assert read_file(file) == {}


def test_a_configuration_survives_its_file_format() -> None:
    config = configure({"slots": ["a"], "tablet_server": {"heartbeat_s": 0.2}})
    assert msgspec.json.decode(msgspec.json.encode(config), type=DeploymentConfig) == config
