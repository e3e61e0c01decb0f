"""Recovery scenarios of shadow redundancy, run in the lab. docs/lab.md "Scenarios".

`script` defines scenarios as data, `catalogue` lists them, and `verdict` judges results; these three are pure. `player` runs a scenario
and collects the evidence.
"""
