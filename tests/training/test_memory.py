"""Freed memory stays in the process while a model is trained, and is returned afterwards."""

from __future__ import annotations

import ctypes
import sys

import pytest

from vaescope.training import compilation as memory

MMAP, TRIM = -3, -1  # parameters of mallopt


@pytest.mark.parametrize("largest", [2**31 - 1, 2**25])
def test_thresholds_are_raised_inside_and_usual_afterwards(monkeypatch: pytest.MonkeyPatch, largest: int) -> None:
    """Some versions of glibc refuse more than 32 MB: then that is used."""
    values: dict[int, int] = {}
    trimmed: list[int] = []

    class Libc:
        @staticmethod
        def mallopt(parameter: int, value: int) -> int:
            if parameter == MMAP and value > largest:
                return 0
            values[parameter] = value
            return 1

        @staticmethod
        def malloc_trim(pad: int) -> None:
            trimmed.append(pad)

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Libc)
    with memory.keep_freed_memory():
        assert values == {MMAP: largest, TRIM: 2**31 - 1}
        assert not trimmed
    assert values == {MMAP: 2**25, TRIM: 2**26}
    assert trimmed == [0]


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def missing(name: str) -> object:
        raise error(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with memory.keep_freed_memory():
        pass


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("loaded a C library"))
    with memory.keep_freed_memory():
        pass
