"""What happens to a message: accept, copy, deliver, take over, review, let go; each rule beside the loop that obeys it.

The modules of rules decide, as functions of values with the time passed in, and touch nothing: `routing`, `delivery_rules`,
`placement`, `ages`, `dsn`, `tracking_rows` (floor 2). The others are thin loops that obey them (floor 4): no SQL, no sockets here.
"""
