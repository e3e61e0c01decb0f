"""The figures of docs/sla.md as transforms, DataFrame -> DataFrame, without session, files or configuration.

In processing order: `rows` classifies rows; `first_pass` scans all messages and judges the plain ones; `exact` judges the others row by
row, and `incidents` finds what went wrong with them; `evidence` combines both; `slow` finds the messages
that missed a speed target; `counting` computes the figures.

Internally, instants are longs: microseconds since 1970 (`at`, `done_at` …), and so are spans (`…_us`). Spark's fast hash aggregate needs
such fixed-width values, which it updates in place, and time zones cannot cause errors. Published tables have
timestamps.
"""
