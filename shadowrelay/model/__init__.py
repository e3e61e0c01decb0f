"""Frozen values for the vocabulary of docs/design.md 2: no decisions, no input or output. Floor 0."""
