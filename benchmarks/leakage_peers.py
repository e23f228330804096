"""Scores of scib-metrics of the data sets that `benchmarks.leakage peers` wrote: `python leakage_peers.py FOLDER`.

Needs NumPy and scib-metrics only, so that it runs in an environment of its own.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main() -> None:
    import scib_metrics
    from scib_metrics.nearest_neighbors import pynndescent

    folder = Path(sys.argv[1])
    found: dict[str, list[float]] = {"kBET": [], "iLISI": [], "PCR": [], "batch silhouette": []}
    for file in sorted(folder.glob("*.npz")):
        data = np.load(file)
        z, batch = data["z"].astype(np.float32), data["n"]
        neighbours = pynndescent(z, n_neighbors=90, random_state=0)
        found["kBET"].append(float(scib_metrics.kbet(neighbours.subset_neighbors(n=50), batch)[0]))
        found["iLISI"].append(float(scib_metrics.ilisi_knn(neighbours, batch)))
        found["PCR"].append(float(scib_metrics.utils.principal_component_regression(z, batch, categorical=True)))
        one_label = np.zeros(len(z), int)
        try:
            found["batch silhouette"].append(float(scib_metrics.silhouette_batch(z, one_label, batch)))
        except (ValueError, ZeroDivisionError):
            found["batch silhouette"].append(float("nan"))
    kept = {name: values for name, values in found.items() if not np.isnan(values).any()}
    (folder / "scores.json").write_text(json.dumps(kept))
    print({name: len(values) for name, values in kept.items()})


if __name__ == "__main__":
    main()
