"""What notebooks show."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.training.progress import NotebookBar


@pytest.fixture
def shown(monkeypatch):
    """What a stand-in for IPython displays, newest last."""
    drawn: list[str] = []
    module = ModuleType("IPython.display")
    module.HTML = lambda text: text
    module.display = lambda text, display_id: drawn.append(text) or SimpleNamespace(update=drawn.append)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    return drawn


def test_a_bar_is_redrawn_and_not_too_often(shown):
    bar = NotebookBar("<fit>")
    for done in range(1, 101):
        bar.show(done, 100, "4 training")
    assert len(shown) == 2
    assert 'value="100" max="100"' in shown[-1]
    assert "&lt;fit&gt;" in shown[-1]


def test_a_fit_is_a_table_of_members():
    fit = vs.fit(torch.randn(50, 3), latent_dim=2, epochs=1, seeds=2, progress=vs.training.NoProgress())
    assert fit._repr_html_().count("<tr>") == 3
    assert list(fit.to_frame()["seed"]) == [0, 1]


def test_a_diagnosis_has_findings_and_escapes_names():
    arrays = vs.adapters.from_arrays(np.zeros((300, 2)), np.ones((300, 2)))
    text = vs.diagnose(arrays, name="<script>", progress=None)._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "What to do" in text or "<i>" in text
