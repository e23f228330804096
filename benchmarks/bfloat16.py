"""Accuracy of training in bfloat16: held-out ELBO of convolutional VAEs trained in both precisions from the same seeds.

Three structures of images at 32 x 32 pixels. Every seed starts with the same weights, batches and noise in both
precisions; the validation ELBO is computed in float32 for both. Prints, per structure, the mean ELBO in each precision,
the mean difference over seeds with its standard error, and the standard deviation over seeds.
"""

from __future__ import annotations

import argparse
import statistics

import vaescope as vs
from vaescope.data.rendering import DSprites, Renderer, Shapes3D, Sprites
from vaescope.training import NoProgress

SIZE, IMAGES, EPOCHS = 32, 10_000, 12
STRUCTURES: dict[str, tuple[Renderer, dict[str, object]]] = {
    "sprites": (Sprites(size=SIZE), {"latent_dim": 4, "precision": 20.0, "architecture": "sprites"}),
    "dSprites": (DSprites(size=SIZE), {"latent_dim": 10, "likelihood": "bernoulli", "architecture": "regime"}),
    "3DShapes": (Shapes3D(size=SIZE), {"latent_dim": 10, "precision": 20.0, "architecture": "regime"}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("structures", nargs="*", default=list(STRUCTURES))
    parser.add_argument("--seeds", type=int, default=6)
    chosen = parser.parse_args()
    print("| structure | float32 | bfloat16 | difference ± standard error | spread over seeds |\n|---|---|---|---|---|")
    for name in chosen.structures:
        renderer, settings = STRUCTURES[name]
        images = renderer.sample(IMAGES, seed=0).images
        elbo = {
            kind: [
                member.best_elbo
                for member in vs.fit(
                    images,
                    seeds=chosen.seeds,
                    epochs=EPOCHS,
                    decay="cosine",
                    compile="always",
                    mixed_precision=kind,
                    progress=NoProgress(),
                    **settings,
                ).members
            ]
            for kind in ("never", "always")
        }
        differences = [b - a for a, b in zip(elbo["never"], elbo["always"], strict=True)]
        error = statistics.stdev(differences) / len(differences) ** 0.5
        print(
            f"| {name} | {statistics.mean(elbo['never']):.2f} | {statistics.mean(elbo['always']):.2f} "
            f"| {statistics.mean(differences):+.2f} ± {error:.2f} | {statistics.stdev(elbo['never']):.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
