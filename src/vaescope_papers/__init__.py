"""The experiments of the three papers: one folder per paper, one file per experiment.

`experiment.py` defines what an experiment is, `trained.py` experiments that train stacks, `claims.py`, `criteria.py`
and `statistics.py` how statements are judged, `registration.py` stores them before a run, `verify.py` judges stored
tables again, `results.py` the typed rows, `published.py` reads the published numbers, `run.py` runs an experiment and
writes its report, and `jobs.py` makes experiments tasks for an executor.
"""
