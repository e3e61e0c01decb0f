"""The decisions, as functions of values with the time passed in: no input, no output, no clock, no chance. Floor 2."""
