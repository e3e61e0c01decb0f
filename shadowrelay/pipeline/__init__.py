"""Handles messages: accept, copy, deliver, promote, review, discard. docs/architecture.md "The path of a message".

Rule modules are pure functions of values, with the time passed in: `routing`, `site_links`, `delivery_rules`, `placement`, `dsn`,
`journal`, `pressure_rules` (floor 2). The others are thin loops that apply the rules (floor 4). No SQL and no sockets here.
"""
