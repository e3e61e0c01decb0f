"""Text <-> values, and nothing else: no decision, no input or output, no clock. Floor 1.

The rules of the package:

- `format_x` and `parse_x` are inverses. What `format_x` gives is the *argument* of a verb or the *text* of a reply:
  never the verb, the reply code or the line end.
- Whatever text a `parse_x` is given, it returns a value or raises `WireError`, which carries the reply to give.
  No text of the other side is echoed in that reply.
- Every limit is a constant with its arithmetic beside it. `docs/protocol.md` lists them.
"""
