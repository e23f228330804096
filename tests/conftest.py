"""Fixtures for all tests."""

import os

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

# a shared machine can be slow at any moment: no test depends on the time of an example
settings.register_profile("vaescope", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("vaescope")


def pytest_runtest_setup(item):
    """Draws without a generator of their own are the same in every run."""
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes():
    """Shape checks off, as for users: a wrong shape must meet the package's own message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(autouse=True)
def keep_exit(monkeypatch):
    """The command line replaces `os._exit` for the rest of its process, which here is that of the tests."""
    monkeypatch.setattr(os, "_exit", os._exit)
