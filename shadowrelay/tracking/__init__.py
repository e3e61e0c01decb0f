"""The message tracking log (evidence) and the operator log (narration): two streams that never mix."""
