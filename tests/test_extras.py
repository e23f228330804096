"""Features without their library stop with one line that names the extra; the extras are those of the package."""

import ast
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from vaescope.core.errors import EXTRAS, InputError, check_installed, require
from vaescope.data.catalogue import dataset_from
from vaescope.sweeps import read_sweep

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def requirement_name(requirement: str) -> str:
    return re.split(r"[\[<>=]", requirement, maxsplit=1)[0].lower()


@pytest.fixture
def not_installed(monkeypatch):
    """Make imports of a package fail."""

    def hide(package: str) -> None:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, package, None)

    return hide


@pytest.mark.parametrize("package", EXTRAS)
def test_every_library_is_in_its_extra(package):
    library, extra = EXTRAS[package]
    assert library.lower() in {requirement_name(r) for r in PROJECT["optional-dependencies"][extra]}


@pytest.mark.parametrize("package", EXTRAS)
def test_a_missing_library_is_one_line_with_its_extra(package, not_installed):
    not_installed(package)
    library, extra = EXTRAS[package]
    with pytest.raises(InputError, match=rf"^this needs {library}, .*pip install 'vaescope\[{extra}\]'\.$"):
        require(package, "this")


def test_a_check_does_not_import(monkeypatch):
    monkeypatch.setitem(EXTRAS, "no_such_library", ("No such library", "images"))
    with pytest.raises(InputError, match="this needs No such library"):
        check_installed("no_such_library", "this")
    check_installed("h5py", "this")


def test_files_that_need_an_extra_name_it(tmp_path, not_installed):
    (tmp_path / "x.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "sweep.yaml").write_text("fit: {}")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"\x89PNG")
    for package, read, extra in (
        ("h5py", lambda: dataset_from(tmp_path / "x.h5"), "hdf5"),
        ("PIL", lambda: dataset_from(tmp_path / "images"), "images"),
        ("yaml", lambda: read_sweep(tmp_path / "sweep.yaml"), "sweep"),
    ):
        not_installed(package)
        with pytest.raises(InputError, match=rf"vaescope\[{extra}\]"):
            read()


def test_no_module_imports_a_library_of_an_extra_when_it_is_imported():
    found = [
        f"{file.name}: {name}"
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        if (name or "").split(".")[0] in EXTRAS
    ]
    assert found == []


def test_lowest_versions_are_those_that_the_package_asks_for():
    pinned = dict(line.split("==") for line in (ROOT / "constraints-lowest.txt").read_text().split())
    extras = PROJECT["optional-dependencies"]
    asked = PROJECT["dependencies"] + extras["images"] + extras["hdf5"] + extras["sweep"] + extras["interop"]
    assert pinned == {requirement_name(r): r.split(">=")[1] for r in asked}


def test_the_arrays_that_numpy_reads_need_no_extra(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((4, 2), np.float32))
    assert dataset_from(tmp_path / "x.npy").x.shape == (4, 2)
