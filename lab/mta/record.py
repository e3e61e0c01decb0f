#!/usr/bin/python3 -IS
"""Writes down what a receiving server took: one line of JSON for a message and a recipient, appended in one write, synced.

Called by the server's pipe transport with the message on standard input, and the recipient as argument (Postfix) or in the
environment (Exim). What it says is evidence, so it knows nothing of the nodes but what stands in the message.
Fails with EX_TEMPFAIL, so that the server tries again: an arrival that is not written down would be counted as lost.
"""

import hashlib
import json
import os
import sys
import time

FILE = "/var/lib/record/arrivals.jsonl"
MARK = b"X-Lab:"  # the first header field that the client itself wrote
EX_TEMPFAIL = 75


def main():
    data = sys.stdin.buffer.read().replace(b"\r\n", b"\n")
    recipient = sys.argv[1] if len(sys.argv) > 1 else os.environ["RECIPIENT"]
    head, _, _ = data.partition(b"\n\n")
    own = data[data.index(MARK) :] if MARK in head else data
    arrival = {
        "at": time.time(),
        "recipient": recipient.lower(),
        "head": head.decode("utf-8", "replace"),
        "own_sha256": hashlib.sha256(own).hexdigest(),
        "own_size": len(own),
    }
    descriptor = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, (json.dumps(arrival) + "\n").encode())
    os.fsync(descriptor)
    os.close(descriptor)


try:
    main()
except OSError as error:
    print(f"record: {error}", file=sys.stderr)
    sys.exit(EX_TEMPFAIL)
