#!/usr/bin/python3 -IS
"""Postfix's policy service: while /run/lab/defer exists, every recipient is answered 451. RFC 3463 4.3.2."""

import os
import sys

for line in sys.stdin:
    if line == "\n":
        is_deferring = os.path.exists("/run/lab/defer")
        action = "DEFER 4.3.2 The receiving server takes nothing now" if is_deferring else "DUNNO"
        print(f"action={action}\n", flush=True)
