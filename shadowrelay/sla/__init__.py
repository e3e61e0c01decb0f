"""The redundancy report: a PySpark job over tracking logs. docs/sla.md defines every figure.

It stands apart from the relay: it imports `model`, `wire` and `signals` only, and only its command imports it. pyspark is imported late, so
that `session.check_spark` reports a missing one, and not a traceback.
"""
