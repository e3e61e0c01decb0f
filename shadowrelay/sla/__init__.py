"""The redundancy report: a PySpark job over tracking logs. docs/sla.md defines every figure.

Separate from the relay: it imports only `model`, `protocol` and `signals`, and only its commands import it. pyspark is imported late,
so that `session.check_spark` can report that it is missing, without a traceback.
"""
