"""The message tracking log (evidence) and the operator log (diagnostics), which never mix. docs/operations.md."""
