"""Handles messages: accept, copy, deliver, promote, review, discard. docs/architecture.md "The path of a message".

Thin loops that apply the rules of `rules` and `ownership` (floor 4). No SQL and no sockets here.
"""
