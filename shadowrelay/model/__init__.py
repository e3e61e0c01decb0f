"""The words of the program as frozen values: no decisions, no input or output. Floor 0."""
