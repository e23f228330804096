"""Rules of the code base: import order, declared models, types, public names, light imports."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vaescope

ROOT = Path(vaescope.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# a package imports only packages that come before it
ORDER = [
    "errors",
    "extras",
    "checks",
    "tables",
    "plain",
    "findings",
    "skipped",
    "schedules",
    "settings",
    "randomness",
    "containers",
    "validation",
    "distributions",
    "protocol",
    "data",
    "kernels",
    "models",
    "objectives",
    "training",
    "theory",
    "encoded",
    "regime",
    "orthogonality",
    "metrics",
    "runs",
    "report",
    "forecast",
    "fitting",
    "adapters",
    "identification",
    "diagnosis",
    "certification",
    "anomaly",
    "watch",
    "comparison",
    "interop",
    "explorer",
    "jobs",
    "papers",
    "sweeps",
    "cli",
    "__main__",
]
MAX_ANY_PER_THOUSAND_LINES = 6
MAX_PUBLIC_NAMES = 150  # preflight, Watch, compare, certify, identifiability and their results are part of the contract


def package_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_packages(file: Path) -> set[str]:
    packages = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "vaescope":
            packages |= {alias.name for alias in node.names if alias.name in ORDER}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vaescope."):
            packages.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            packages |= {a.name.split(".")[1] for a in node.names if a.name.startswith("vaescope.")}
    return packages


def test_every_package_has_a_place_in_the_order():
    assert {package_of(file) for file in FILES} - {"__init__"} == set(ORDER)


def test_no_package_imports_a_later_one():
    wrong = [
        f"{file.relative_to(ROOT)} imports {package}"
        for file in FILES
        if (here := package_of(file)) != "__init__"
        for package in imported_packages(file)
        if ORDER.index(package) > ORDER.index(here)
    ]
    assert wrong == []


def calls(file: Path, *names: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]


def test_models_are_not_probed_for_attributes_outside_the_adapters():
    """Analyses use what `LatentModel` declares."""
    wrong = [
        f"{file.relative_to(ROOT)}:{call.lineno}: {ast.unparse(call)}"
        for file in FILES
        if package_of(file) != "adapters"
        for call in calls(file, "getattr", "hasattr")
        if re.search(r"\b(model|member|models|first|view|viewed)\b", ast.unparse(call.args[0]))
    ]
    assert wrong == []


def test_any_is_rare_outside_the_adapters():
    files = [file for file in FILES if package_of(file) != "adapters"]
    lines = sum(len(file.read_text().splitlines()) for file in files)
    uses = sum(
        isinstance(node, ast.Name) and node.id == "Any"
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
    )
    assert 1000 * uses / lines <= MAX_ANY_PER_THOUSAND_LINES


def public_names() -> list[str]:
    found = []
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                assert isinstance(node.value, ast.List), file
                found += [f"{file.relative_to(ROOT)}: {element.value}" for element in node.value.elts]
    return found


def test_public_names_are_few():
    names = public_names()
    assert len(names) <= MAX_PUBLIC_NAMES, len(names)


def test_files_are_small():
    large = {
        str(file.relative_to(ROOT)): count for file in FILES if (count := len(file.read_text().splitlines())) > 400
    }
    assert large == {}


@pytest.mark.parametrize(
    "word", ["waist", "kin", "whom", "hitherto", "taken_apart", "carried_out", "let_go", "told", "to_the_end"]
)
def test_words_that_readers_have_to_decode_are_gone(word):
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in FILES
        for number, line in enumerate(file.read_text().splitlines(), start=1)
        if re.search(rf"\b{word}\b", line)
    ]
    assert found == []


def test_importing_changes_nothing_global_and_help_is_light():
    code = (
        "import sys, warnings; before = list(warnings.filters);"
        "import vaescope, vaescope.cli;"
        "assert list(warnings.filters) == before;"
        "assert 'torch' not in sys.modules and 'matplotlib' not in sys.modules, 'heavy import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    code = (
        "import torch;"
        "state = lambda: (torch.get_default_dtype(), torch.get_num_threads(), torch.initial_seed());"
        "before = state();"
        "import vaescope as vs; vs.theory, vs.training, vs.fit, vs.metrics, vs.data;"
        "assert state() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_training_does_not_import_what_only_pages_metrics_and_compilers_need():
    """Every worker process imports these modules first."""
    heavy = "{'matplotlib.figure', 'sklearn', 'scipy.stats', 'torch._dynamo'}"
    code = "import sys\n" + "".join(
        f"import vaescope.{module}; found = {heavy} & set(sys.modules); assert not found, ({module!r}, found)\n"
        for module in ("models", "training", "fitting", "watch", "jobs")
    )
    subprocess.run([sys.executable, "-c", code], check=True)
