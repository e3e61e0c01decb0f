"""Rules about messages, next hops and copies: functions of values, with the time passed in; `pipeline` obeys them. docs/design.md. Floor 2.

Who may deliver is a matter of its own: `ownership`.
"""
