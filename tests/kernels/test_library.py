"""C++ sources are compiled once; what cannot be compiled is reported in one line and not loaded."""

import shutil

import pytest

from vaescope.kernels import library
from vaescope.kernels.library import cache_folder, load_library

pytestmark = pytest.mark.skipif(shutil.which(library.COMPILER) is None, reason="no compiler here")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }\n')
    return path


def test_a_source_is_compiled_once(source, monkeypatch):
    assert load_library(source).answer() == 42
    assert [path.suffix for path in cache_folder().iterdir()] == [".so"]
    monkeypatch.setattr(library, "_compile", lambda *_: pytest.fail("compiled again"))
    assert load_library(source).answer() == 42


def test_a_changed_source_is_compiled_again(source):
    load_library(source)
    source.write_text(source.read_text().replace("42", "43"))
    assert load_library(source).answer() == 43
    assert load_library(source, "-DNDEBUG").answer() == 43
    assert len(list(cache_folder().iterdir())) == 3


def test_an_error_of_the_compiler_is_one_line(source):
    source.write_text("this is not C++\n")
    with pytest.warns(UserWarning, match=r"cannot compile answer.cpp \(.*error: .*\); PyTorch's own kernels"):
        assert load_library(source) is None
    assert list(cache_folder().iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(source, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="cannot compile answer.cpp"):
        assert load_library(source) is None


def test_a_damaged_library_is_compiled_again(source, monkeypatch):
    monkeypatch.setattr(library, "_compile", lambda compiler, source, flags, library: library.touch())
    cache_folder().mkdir(parents=True)
    with pytest.warns(UserWarning, match="cannot compile answer.cpp"):
        assert load_library(source) is None  # an empty file
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(source.parent / "cache"))
    assert load_library(source).answer() == 42


def test_without_a_home_folder_there_is_no_library(source, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # ignored, as the standard says

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(library.Path, "home", home)
    with pytest.warns(UserWarning, match=r"cannot compile answer.cpp \(Could not determine home directory"):
        assert load_library(source) is None
