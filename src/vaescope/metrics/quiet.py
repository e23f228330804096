"""Warnings of fits that do not concern the user, suppressed in all threads.

`warnings.catch_warnings` alone restores wrong filters if threads enter and leave it in different orders.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

_lock = threading.Lock()
_filters = ExitStack()
_users = 0


@contextmanager
def without_fit_warnings() -> Iterator[None]:
    """Ignore that scikit-learn takes many classes for a regression target.

    >>> with without_fit_warnings():
    ...     warnings.warn("the number of unique classes is large", stacklevel=1)
    """
    _enter()
    try:
        yield
    finally:
        _leave()


def _enter() -> None:
    global _users
    with _lock:
        if _users == 0:
            _filters.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", UserWarning)
        _users += 1


def _leave() -> None:
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _filters.close()
