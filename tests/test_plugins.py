"""Functions of other packages: the package of docs/questions/plugins.md is built, installed and used; named faults."""

import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
import torch

import vaescope as vs
from vaescope.core import plugins as module
from vaescope.core.errors import InputError, VaescopeWarning
from vaescope.report.findings import Finding

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/questions/plugins.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def installed_plugin(tmp_path):
    """A new environment with vaescope, its dependencies, and the wheel of the package that the page describes."""
    for needed in ("build", "hatchling"):
        pytest.importorskip(needed)
    source = tmp_path / "source"
    source.mkdir()
    (source / "tiny_vae_tools.py").write_text("\n\n".join(blocks("python")))
    (source / "pyproject.toml").write_text("\n".join(blocks("toml")))
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    zipfile.ZipFile(next((tmp_path / "dist").glob("*.whl"))).extractall(site)
    (site / "shared.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def test_the_package_of_the_page_works_when_it_is_installed(installed_plugin, tmp_path):
    (use,) = blocks("py")
    table = "\nprint(vs.metrics.evaluate(torch.randn(90, 2), torch.randn(90, 2), intervals=False))\n"
    code = "import warnings; warnings.simplefilter('error', UserWarning)\n" + use + table
    done = subprocess.run([installed_plugin, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codes, score = done.stdout.splitlines()[:2]
    assert "'few-samples'" in codes
    assert re.match(r"best_correlation: best_correlation 0\.\d+", score)
    assert re.search(r"best_correlation +0\.\d+ .*Does any latent follow each factor\?", done.stdout)


# in this process ------------------------------------------------------------------------------


@pytest.fixture
def declare(monkeypatch, tmp_path):
    """Declare functions of a module as entry points, as installed packages do."""
    monkeypatch.syspath_prepend(tmp_path)
    declared: list[EntryPoint] = []
    monkeypatch.setattr(module, "entry_points", lambda group: [e for e in declared if e.group == group])

    def declare(group: str, name: str, value: str, code: str = "") -> None:
        if code:
            (tmp_path / f"{value.split(':')[0]}.py").write_text(code)
        declared.append(EntryPoint(name, value, f"vaescope.{group}"))
        module.plugins.cache_clear()
        module._declared.cache_clear()

    yield declare
    module.plugins.cache_clear()
    module._declared.cache_clear()


POSTERIORS = vs.adapters.from_arrays(torch.zeros(300, 3), torch.ones(300, 3))


def test_a_rule_that_fails_is_named_and_the_diagnosis_goes_on(declare):
    declare("findings", "broken", "rules_a:rule", "def rule(found):\n    raise KeyError('no such thing')\n")
    declare("findings", "text", "rules_b:rule", "def rule(found):\n    return 'a finding'\n")
    own = "    return Finding('own', 'error', 'T.', 'E', 'A')\n"
    own = "from vaescope.report.findings import Finding\ndef rule(found):\n" + own
    declare("findings", "own", "rules_c:rule", own)
    found = vs.diagnose(POSTERIORS, progress=None)
    assert {f.code for f in found.findings} == {"collapsed", "own"}
    assert isinstance(found.find("own"), Finding)
    assert found.skipped["rule broken"] == "it failed with KeyError: 'no such thing'"
    assert found.skipped["rule text"] == "it must return a Finding or None, not str"


def test_a_metric_has_interval_and_floor_and_cannot_replace_one(declare):
    code = (
        "import numpy as np\n"
        "def same(codes, factors):\n    return float(np.abs(codes - factors).mean() < 0.1)\n"
        "def fails(codes, factors):\n    raise ZeroDivisionError('by zero')\n"
        "def text(codes, factors):\n    return 'high'\n"
    )
    for name, function in {"same": "same", "fails": "fails", "text": "text", "mcc": "same"}.items():
        declare("metrics", name, f"own_metrics:{function}", code)
    factors = np.random.default_rng(0).normal(size=(200, 2))
    found = vs.metrics.evaluate(factors, factors)
    assert found["same"].score == 1.0
    assert found["same"].interval == pytest.approx((1.0, 1.0))
    assert found["same"].floor == 0.0
    assert found["mcc"].name != "same"
    assert found.skipped == {
        "fails": "ZeroDivisionError: by zero",
        "text": "text must return a number or a Score, got str",
    }
    assert [row["metric"] for row in found.rows].count("same") == 1


def test_adapters_take_models_of_their_library_only(declare):
    code = "def adapt(model):\n    return model['model'] if isinstance(model, dict) else None\n"
    declare("adapters", "dicts", "own_adapter:adapt", code)
    assert vs.diagnose({"model": POSTERIORS}, progress=None).find("collapsed")
    with pytest.raises(InputError, match="expected a model, got list"):
        vs.diagnose([[1, 2]], progress=None)
    declare("adapters", "others", "own_adapter:adapt")
    declare("adapters", "others", "own_adapter:adapt")  # found twice on the path: the same function
    with pytest.raises(InputError, match="several installed adapters take a dict: dicts, others; call one"):
        vs.diagnose({"model": POSTERIORS}, progress=None)


def test_objectives_by_name(declare):
    code = "def mine(terms, beta):\n    return (beta.unsqueeze(-1) * terms.kl - terms.log_likelihood).mean(-1)\n"
    declare("objectives", "mine", "own_objective:mine", code)
    options = {"latent_dim": 1, "epochs": 1, "precision": 1.0, "progress": vs.training.NoProgress()}
    x = torch.randn(40, 2)
    own, known = (vs.fit(x, objective=name, **options).best for name in ("mine", "beta"))
    assert own.best_elbo == known.best_elbo
    with pytest.raises(InputError, match=r"objective must be one of beta, .*, capacity, mine, got 'yours'"):
        vs.fit(x, objective="yours", **options)


def test_what_cannot_be_loaded_is_named(declare):
    declare("metrics", "gone", "no_such_module:f")
    declare("metrics", "number", "own_number:f", "f = 3\n")
    declare("objectives", "gone", "no_such_module:f")
    with pytest.warns(VaescopeWarning) as caught:
        assert module.plugins("metrics") == {}
    assert [str(w.message) for w in caught] == [
        "'gone' of vaescope.metrics (no_such_module:f) cannot be loaded: ModuleNotFoundError: "
        "No module named 'no_such_module'.",
        "'number' of vaescope.metrics (own_number:f) cannot be loaded: it is not a function, but int.",
    ]
    with pytest.raises(InputError, match=r"'gone' of vaescope\.objectives"):
        vs.objectives.objective_by_name("gone", samples=10, latent_dim=2)


def test_a_name_of_two_packages_is_refused(declare):
    declare("objectives", "mine", "one:f", "f = print\n")
    declare("objectives", "mine", "two:f", "f = print\n")
    with pytest.raises(InputError, match=r"two installed packages add 'mine' to vaescope\.objectives: one:f and two:f"):
        vs.objectives.objective_by_name("mine", samples=10, latent_dim=2)
