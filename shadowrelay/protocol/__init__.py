"""Parsers and formatters between text and values: no decision, no input or output, no clock. docs/protocol.md. Floor 1.

The rules of the package:

- `format_x` and `parse_x` are inverses. `format_x` returns the *argument* of a verb or the *text* of a reply,
  never the verb, the reply code or the line end.
- For any text, `parse_x` returns a value or raises `WireError`, which carries the reply to send.
  That reply never echoes text of the other side.
- Every limit is a constant with its arithmetic beside it. `docs/protocol.md` lists them.
"""
