#!/usr/bin/python3 -I
"""Gives messages to the Postfix of this machine, by SMTP: `inject.py BATCH COUNT RATE SIZE FIRST`. One line of JSON for each.

Lines: {"number", "internet_message_id", "recipients", "own_sha256", "queue_id", "at"}; queue_id is empty if Postfix refused.
Every third message goes to partner.example (Exim), every tenth to both domains, the others to corp.example (Postfix).
It ends early when its standard input does: then nobody is there who writes down what was sent.
"""

import hashlib
import json
import re
import select
import smtplib
import sys
import time

SENDER = "sender@client.example"
LINE = "All work and no copy makes a relay a dull server.\r\n"
QUEUED = re.compile(rb"queued as (\w+)")


def recipients_of(number):
    corp, partner = f"user{number % 50}@corp.example", f"user{number % 50}@partner.example"
    if number % 10 == 0:
        return [corp, partner]
    return [partner] if number % 3 == 0 else [corp]


def content_of(batch, number, recipients, size):
    head = (
        f"X-Lab: {number}\r\nFrom: {SENDER}\r\nTo: {', '.join(recipients)}\r\nSubject: message {number}\r\n"
        f"Message-ID: <{number}.{batch}@client.example>\r\nDate: {time.strftime('%a, %d %b %Y %H:%M:%S +0000', time.gmtime())}\r\n\r\n"
    )
    return (head + LINE * max(1, (size - len(head)) // len(LINE))).encode()


def give(session, recipients, content):
    """Postfix's queue id, or nothing if it refused any part."""
    session.rset()
    answers = [session.mail(SENDER), *(session.rcpt(recipient) for recipient in recipients)]
    if any(code // 100 != 2 for code, _ in answers):
        return ""
    code, text = session.data(content)
    found = QUEUED.search(text)
    return found[1].decode() if code == 250 and found else ""


def is_left_alone(seconds):
    """Waits so long, or until standard input ends."""
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready)


def main(batch, count, rate, size, first):
    session = smtplib.SMTP("127.0.0.1", 25, timeout=30)
    session.ehlo("client.example")
    began = time.monotonic()
    for index in range(count):
        if is_left_alone(max(0.0, began + index / rate - time.monotonic())):
            break
        number = first + index
        recipients = recipients_of(number)
        content = content_of(batch, number, recipients, size)
        line = {
            "number": number,
            "internet_message_id": f"<{number}.{batch}@client.example>",
            "recipients": recipients,
            "own_sha256": hashlib.sha256(content.replace(b"\r\n", b"\n")).hexdigest(),
            "at": time.time(),
            "queue_id": give(session, recipients, content),
        }
        print(json.dumps(line), flush=True)
    session.quit()


main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
