"""The wheel has every module under the name ebla, and works."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("client", "actors", "placement", "storage", "pipelines", "chaos")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    target = tmp_path_factory.mktemp("wheel")
    source = target / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", *FOLDERS):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(target), str(source)], check=True, cwd=target)
    return zipfile.ZipFile(next(target.glob("ebla-*.whl")))


def test_a_wheel_holds_every_module_under_the_name_ebla(wheel: zipfile.ZipFile) -> None:
    held = {name for name in wheel.namelist() if name.endswith(".py")}
    wanted = set()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            inside = path.relative_to(ROOT / folder) if folder == "client" else path.relative_to(ROOT)
            wanted.add(str(Path("ebla") / inside))
    assert held == wanted
    assert "ebla/py.typed" in wheel.namelist()


def test_a_wheel_has_the_ebla_command(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert "ebla = ebla.cli:main" in wheel.read(entry_points).decode()


def test_the_wheel_can_be_imported_from_anywhere(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    code = "import ebla.actors.tablet.server, ebla.storage.rows.rows, ebla.cli; print(ebla.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.meta_path[:] = [f for f in "
         f"sys.meta_path if 'editable' not in getattr(f, '__module__', '') + str(f)]; {code}"],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert found.stdout.strip() == str(tmp_path / "ebla" / "__init__.py")
