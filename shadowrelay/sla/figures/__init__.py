"""The figures of docs/sla.md as transforms, DataFrame -> DataFrame. No session, no file and no configuration in here.

In the order in which events become figures: `rows` says what a row means; `first_pass` looks at every message and judges the plain ones;
`exact` judges the others row by row, and `incidents` finds what went wrong with them; `evidence` joins both; `counting` makes the figures.

Inside, instants are long: microseconds since 1970 (`at`, `done_at` …), and so are spans (`…_us`). Aggregates of fixed width can then be
updated in place, which Spark's fast hash aggregate needs, and nobody has to think of time zones. What is written for readers has
timestamps.
"""
