"""The recovery scenarios of shadow redundancy, played in the lab.

`script` says what a scenario is, `catalogue` has them all, and `verdict` judges; these three are pure. `player` plays one and asks the
witnesses.
"""
