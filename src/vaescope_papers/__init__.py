"""The experiments of the three papers: one folder per paper, one file per figure or table.

`experiment.py` defines what an experiment is, `trained.py` experiments that train stacks, `claims.py` and
`criteria.py` how statements are judged, `results.py` the typed rows, `published.py` comparisons with published values,
`run.py` and `report.py` how an experiment is run and reported, and `jobs.py` experiments as tasks for an executor.
"""
