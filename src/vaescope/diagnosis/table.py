"""A table of latents that prints as a table."""

from __future__ import annotations

SHOWN = 20  # rows that are printed


class LatentTable(list[dict[str, object]]):
    """Rows as dictionaries, a row per latent; printed with aligned columns.

    >>> LatentTable([{"latent": 3, "KL": 1.25}, {"latent": 0, "KL": None}])
    latent    KL
    3       1.25
    0          –
    """

    def __repr__(self) -> str:
        if not self:
            return "no latents"
        lines = [list(self[0]), *([_cell(value) for value in row.values()] for row in self[:SHOWN])]
        widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]))]
        text = [
            "  ".join(c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(line, widths, strict=True)))
            for line in lines
        ]
        rest = [f"… and {len(self) - SHOWN} more"] if len(self) > SHOWN else []
        return "\n".join(line.rstrip() for line in text + rest)


def _cell(value: object) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)
