"""One file per figure or table of the papers: settings, cells, claims, figures."""
