"""Sweep files: YAML as plain data, read safely."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from vaescope.errors import InputError
from vaescope.extras import require
from vaescope.plain import Plain

MAX_FILE_BYTES = 2**20


def read_yaml(path: Path) -> Mapping[str, Plain]:
    """The settings in a sweep file by name.

    Args:
        path: a YAML file.
    """
    yaml = require("yaml", "reading sweep files")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MB; it is not a sweep file.")
        found = yaml.load(path.read_text(encoding="utf-8"), _safe_loader())
    except OSError as error:
        raise InputError(f"cannot read {path}: {(error.strerror or str(error)).lower()}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"cannot read {path} as YAML: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise InputError(f"{path} must have fit: or experiment:, and sweep: with a list of values per setting.")
    return found


@cache
def _safe_loader() -> type:
    """A loader of plain data without aliases: a few nested aliases can expand to more than memory holds."""
    import yaml

    class Loader(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
            if self.check_event(yaml.AliasEvent):
                raise yaml.YAMLError("aliases (*) are not supported; write the value again")
            return super().compose_node(parent, index)

    Loader.add_implicit_resolver(  # YAML 1.1 reads 1e-3 as text
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )
    return Loader
