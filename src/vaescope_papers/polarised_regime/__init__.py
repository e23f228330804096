"""*The Polarised Regime of Identifiable Variational Autoencoders* (Bonheme & Grzes, 2023).

| figure or table | experiment | file |
|---|---|---|
| Figs. 1 to 4, Props. 1 to 3, Theorems 1 and 2 | polarised-regime | polarised_regime.py; claims: judged.py |
| the iVAE itself (Khemakhem et al. 2020, §5) | ivae-sources | ivae_sources.py |
| mixed latents, which the paper does not observe | linear-ivae | linear_ivae.py |

Numbers that the paper publishes are in `published.toml`, its theorems in `theorems.py`.
"""

from vaescope_papers.catalogue import ExperimentInfo

EXPERIMENTS = {
    name: ExperimentInfo(name, f"polarised_regime.{name.replace('-', '_')}", title, source)
    for name, title, source in (
        (
            "polarised-regime",
            "Are latents active or equal to their prior, in VAEs and iVAEs?",
            "Bonheme & Grzes 2023, Props. 1 to 3, Theorems 1 and 2, Figs. 1 to 4; settings of Tabs. 1 and 2",
        ),
        (
            "ivae-sources",
            "Does an iVAE recover sources better than a VAE?",
            "Khemakhem et al. 2020, §5; the models of Bonheme & Grzes 2023",
        ),
        (
            "linear-ivae",
            "When latents of an iVAE are mixed: the closed form, and trained models",
            "Beyond the papers: the linear iVAE",
        ),
    )
}
