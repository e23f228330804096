"""Freed memory stays in the process while a model is trained, and is returned afterwards."""

from __future__ import annotations

import ctypes
import sys

import pytest

from vaescope.training import compilation as memory


def test_thresholds_are_raised_inside_and_usual_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []

    class Libc:
        @staticmethod
        def mallopt(parameter: int, value: int) -> int:
            calls.append((parameter, value))
            return 1

        @staticmethod
        def malloc_trim(pad: int) -> int:
            calls.append((0, pad))
            return 1

    monkeypatch.setattr(memory, "_glibc", lambda: Libc)
    with memory.keep_freed_memory():
        assert calls == [(memory.MMAP_THRESHOLD, memory.KEPT), (memory.TRIM_THRESHOLD, memory.KEPT)]
        calls.clear()
    assert calls == [(memory.MMAP_THRESHOLD, 2**25), (memory.TRIM_THRESHOLD, 2**26), (0, 0)]


def test_a_refused_threshold_is_replaced_by_the_largest_that_every_version_takes() -> None:
    calls: list[tuple[int, int]] = []

    def mallopt(parameter: int, value: int) -> int:
        calls.append((parameter, value))
        return int(value <= 2**25)

    memory._set_thresholds(mallopt, memory.KEPT, memory.KEPT)
    assert (memory.MMAP_THRESHOLD, 2**25) in calls


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def missing(name: str) -> object:
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with memory.keep_freed_memory():
        assert memory._glibc() is None


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert memory._glibc() is None
