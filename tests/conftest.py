"""Fixtures for all tests."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked_shapes():
    """Shape checks off, as for users: a wrong shape must meet the package's own message."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
