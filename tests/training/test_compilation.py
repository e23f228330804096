"""Versions of PyTorch that cannot compile a training step run it uncompiled."""

import pytest
import torch
from torch._dynamo.exc import InternalTorchDynamoError

from vaescope.training import compilation


def test_a_function_that_cannot_be_compiled_runs_uncompiled_and_says_so(monkeypatch):
    def fails(*args, **options):
        def call(*args):
            raise InternalTorchDynamoError("an error of the compiler")

        return call

    monkeypatch.setattr(torch, "compile", fails)
    double = compilation.compile_stacked(lambda x: 2 * x)
    with pytest.warns(UserWarning, match="cannot compile this model: training runs uncompiled"):
        torch.testing.assert_close(double(torch.ones(3)), torch.full((3,), 2.0))
    torch.testing.assert_close(double(torch.ones(3)), torch.full((3,), 2.0))  # warns once


def test_older_versions_of_pytorch_are_called_without_newer_options(monkeypatch):
    given = {}

    def record(function, *, fullgraph, options):
        given.update(options)
        return function

    monkeypatch.setattr(torch, "compile", record)
    monkeypatch.delattr(torch.compiler, "skip_all_guards_unsafe")
    double = compilation.compile_stacked(lambda x: 2 * x)
    torch.testing.assert_close(double(torch.ones(3)), torch.full((3,), 2.0))
    assert given
    assert "guard_filter_fn" not in given
