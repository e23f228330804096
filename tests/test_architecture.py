"""Rules of the code base: import order, declared models, types, public names, light imports."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vaescope

ROOT = Path(vaescope.__file__).parents[1]
FILES = sorted([*(ROOT / "vaescope").rglob("*.py"), *(ROOT / "vaescope_papers").rglob("*.py")])
LINES = {file: file.read_text().splitlines() for file in FILES}
TREES = {file: ast.parse(file.read_text()) for file in FILES}
# a package imports only packages that come before it; products never import each other
ORDER = [
    "core",
    "settings",
    "distributions",
    "protocol",
    "data",
    "models",
    "objectives",
    "training",
    "runs",
    "inference",
    "theory",
    "report",
    "metrics",
    "starts",
    "fitting",
    "sklearn",
    "adapters",
    "analysis",
    "regime",
    "orthogonality",
    "products",
    "improvement",
    "interop",
    "jobs",
    "vaescope_papers",
    "sweeps",
    "cli",
    "__main__",
]
MAX_PUBLIC_NAMES = 161  # the contract: calls, their results, and the functions of `vs.theory.linear`


def package_of(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    return parts[0] if parts[0] != "vaescope" else parts[1].removesuffix(".py")


def imported_modules(file: Path) -> set[str]:
    modules = set()
    for node in ast.walk(TREES[file]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in (
            "vaescope",
            "vaescope_papers",
        ):
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {a.name for a in node.names if a.name.startswith("vaescope")}
    return modules


def imported_packages(file: Path) -> set[str]:
    parts = [module.split(".") for module in imported_modules(file)]
    return {p[0] if p[0] != "vaescope" else p[1] for p in parts if len(p) > 1} & set(ORDER)


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


def product_of(module: str) -> str | None:
    return module.split(".")[2] if module.startswith("vaescope.products.") else None


def test_products_do_not_import_each_other():
    names = {file: ".".join(file.relative_to(ROOT).with_suffix("").parts) for file in FILES}
    wrong = {
        f"{names[file]} imports {module}"
        for file in FILES
        if (own := product_of(names[file])) not in (None, "__init__")
        for module in imported_modules(file)
        if product_of(module) not in (None, own)
    }
    assert wrong == set()


def calls(file: Path, *names: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(TREES[file])
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


def names_of_any(tree: ast.Module, known: frozenset[str] = frozenset({"Any"})) -> frozenset[str]:
    """`Any` and every name that a module gives it, so that an alias counts each time it is used."""
    assigned = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Name | ast.Attribute)
        and ast.unparse(node.value).removeprefix("typing.") in known
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    renamed = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in known
    }
    found = known | assigned | renamed
    return found if found == known else names_of_any(tree, found)


def uses_of_any() -> int:
    names = frozenset[str]().union(*(names_of_any(tree) for tree in TREES.values()))
    nodes = (node for tree in TREES.values() for node in ast.walk(tree))
    return sum(getattr(node, "id", getattr(node, "attr", "")) in names for node in nodes)


@pytest.mark.parametrize(
    "code",
    [
        "from typing import Any\nForeign = Any",
        "import typing\nForeign = typing.Any",
        "from typing import Any as Foreign",
        "from typing import Any\nfrom typing import TypeAlias\nOther: TypeAlias = Any\nForeign: TypeAlias = Other",
    ],
)
def test_other_names_of_any_are_known(code):
    assert "Foreign" in names_of_any(ast.parse(code))


def test_the_package_stays_small():
    """Many small files, constants and untyped values are where the same idea comes to stand twice."""
    assigned = [
        target
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    constants = [t.id for t in assigned if isinstance(t, ast.Name) and t.id.isupper() and len(t.id) > 1]
    assert len(FILES) <= 240
    assert len(constants) <= 250
    assert uses_of_any() <= 64
    assert sum(line.count("type: ignore") for lines in LINES.values() for line in lines) <= 14


def public_names() -> list[str]:
    found = []
    for file in FILES:
        for node in TREES[file].body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                assert isinstance(node.value, ast.List), file
                found += [f"{file.relative_to(ROOT)}: {element.value}" for element in node.value.elts]
    return found


def test_public_names_are_few():
    names = public_names()
    assert len(names) <= MAX_PUBLIC_NAMES, len(names)


def test_no_file_is_larger_than_a_reader_can_take_in():
    assert {str(file.relative_to(ROOT)): len(lines) for file, lines in LINES.items() if len(lines) > 1000} == {}


def test_small_modules_are_shared():
    """A module below 80 lines with a single importer belongs into that importer."""
    importers = {file: set() for file in FILES}
    for user in FILES:
        for module in imported_modules(user):
            parts = module.split(".")
            for k in range(len(parts), 1, -1):
                target = ROOT.joinpath(*parts[:k]).with_suffix(".py")
                if target in importers:
                    importers[target].add(user)
                    break
    alone = [
        str(file.relative_to(ROOT))
        for file, users in importers.items()
        if file.name != "__init__.py" and len(LINES[file]) < 80 and len(users) == 1
    ]
    assert alone == []


@pytest.mark.parametrize(
    "word", ["waist", "kin", "whom", "hitherto", "taken_apart", "carried_out", "let_go", "told", "to_the_end"]
)
def test_words_that_readers_have_to_decode_are_gone(word):
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in FILES
        for number, line in enumerate(LINES[file], start=1)
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
        for module in ("models", "training", "fitting", "products.watch", "jobs")
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_test_modules_have_different_names():
    """In folders that are no packages, which pytest imports by the name of the file alone."""
    files = Path(__file__).parent.rglob("test_*.py")
    names = [file.name for file in files if not (file.parent / "__init__.py").exists()]
    assert sorted(names) == sorted(set(names))
