"""The figures of docs/sla.md as transforms, DataFrame -> DataFrame. No session, no file and no configuration in here.

Inside, instants are long: microseconds since 1970 (`at`, `done_at` …), and so are spans (`…_us`). Aggregates of fixed width can then be
updated in place, which Spark's fast hash aggregate needs, and nobody has to think of time zones. What is written for readers has
timestamps.
"""
