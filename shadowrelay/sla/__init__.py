"""The redundancy report: a PySpark job over tracking logs. docs/sla.md defines every figure.

It stands apart from the relay: it imports `model` and `wire` only, and nothing imports it but its command. pyspark is imported late, so
that a missing one is said by `session.check_spark`, and not by a traceback.
"""
