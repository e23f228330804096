"""The wheel and the source distribution: built, checked, installed into a new environment, and used from elsewhere."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import numpy as np
import pytest

from vaescope import __version__

ROOT = Path(__file__).parents[1]
for needed in ("build", "hatchling", "twine", "check_wheel_contents"):
    pytest.importorskip(needed)
ENTRY_POINT = "from vaescope.cli import main; main()"  # what the installed script does


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command that does not see this checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([str(p) for p in command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    """Both distributions, the wheel built from the source distribution as `pip install` would."""
    out = tmp_path_factory.mktemp("dist")
    done = run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def installed(dist, tmp_path_factory) -> Path:
    """A new environment with the wheel; dependencies are seen through a .pth file, without any checkout.

    The wheel is unpacked, not installed by the pip of this environment, which would remove the vaescope that is
    installed here.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    zipfile.ZipFile(next(dist.glob("*.whl"))).extractall(site)
    (site / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"


def test_the_distributions_pass_the_checks_of_the_index(dist):
    files = sorted(dist.iterdir())
    assert [f.name for f in files] == [f"vaescope-{__version__}-py3-none-any.whl", f"vaescope-{__version__}.tar.gz"]
    checked = run(sys.executable, "-m", "twine", "check", "--strict", *files)
    assert checked.returncode == 0, checked.stdout
    contents = run(sys.executable, "-m", "check_wheel_contents", files[0])
    assert contents.returncode == 0, contents.stdout


def test_the_distributions_contain_what_they_need(dist):
    wheel = set(zipfile.ZipFile(next(dist.glob("*.whl"))).namelist())
    assert {"vaescope/py.typed", "vaescope/report/templates/diagnosis.html"} <= wheel
    assert not any(name.startswith(("tests", "docs")) for name in wheel)
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "tests/conftest.py"} <= names


def test_the_installed_command_works_from_another_folder(installed, tmp_path):
    where = run(installed, "-c", "import vaescope; print(vaescope.__file__)", folder=tmp_path)
    assert str(installed.parents[1]) in where.stdout, where.stderr
    command = (installed, "-c", ENTRY_POINT)
    shown = run(*command, "--help", folder=tmp_path)
    assert shown.returncode == 0
    rng = np.random.default_rng(0)
    mean = np.concatenate([rng.normal(size=(300, 1)), np.zeros((300, 2))], axis=1)
    np.savez(tmp_path / "posteriors.npz", mean=mean, variance=np.array([[0.01, 1.0, 1.0]]).repeat(300, 0))
    done = run(*command, "diagnose", "posteriors.npz", "--html", "page.html", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "(too-many-latents)" in done.stdout
    assert "diagnosis" in (tmp_path / "page.html").read_text().lower()
    np.save(tmp_path / "x.npy", rng.normal(size=(200, 3)).astype(np.float32))
    found = run(*command, "preflight", "x.npy", folder=tmp_path)
    assert found.returncode == 0, found.stderr
    assert "latents" in found.stdout
