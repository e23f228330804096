"""The house keeps its plan: a lower floor never imports a higher one, and nothing global changes."""

import ast
import subprocess
import sys
from pathlib import Path

import vaescope

ROOT = Path(vaescope.__file__).parent
# a room may import only rooms that stand before it
ORDER = [
    "errors",
    "protocol",
    "randomness",
    "distributions",
    "data",
    "models",
    "objectives",
    "training",
    "theory",
    "regime",
    "orthogonality",
    "metrics",
    "runs",
    "jobs",
    "fitting",
    "report",
    "adapters",
    "diagnosis",
    "explorer",
    "papers",
    "sweeps",
    "cli",
]


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "vaescope":
            rooms |= {alias.name for alias in node.names if alias.name in ORDER}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vaescope."):
            rooms.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("vaescope.")}
    return rooms


def room_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def test_every_room_has_its_place():
    rooms = {room_of(file) for file in ROOT.rglob("*.py")} - {"__init__"}
    assert rooms == set(ORDER)


def test_no_room_imports_a_later_one():
    wrong = [
        f"{file.relative_to(ROOT)} imports {room}"
        for file in ROOT.rglob("*.py")
        if (here := room_of(file)) != "__init__"
        for room in imported_rooms(file)
        if ORDER.index(room) > ORDER.index(here)
    ]
    assert wrong == []


def test_the_waist_imports_no_room():
    assert imported_rooms(ROOT / "protocol.py") == set()


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
