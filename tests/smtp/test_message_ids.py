"""Network message ids: drawn many at once, each used once."""

import os
import time
import uuid

from shadowrelay.smtp.message_ids import IDS_DRAWN_AT_ONCE, new_message_id


def test_each_id_is_a_uuid_in_its_usual_form_and_those_of_a_time_lie_together():
    before = time.time_ns() // 1_000_000
    for _ in range(2 * IDS_DRAWN_AT_ONCE):
        text = new_message_id()
        found = uuid.UUID(text)
        assert (text, 7, uuid.RFC_4122) == (str(found), found.version, found.variant)
        assert before <= found.int >> 80 <= time.time_ns() // 1_000_000


def test_no_id_comes_twice():
    count = 10 * IDS_DRAWN_AT_ONCE
    assert count == len({new_message_id() for _ in range(count)})


def test_a_forked_process_draws_others():
    new_message_id()  # so that some are left
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, new_message_id().encode())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)

    assert drawn not in {new_message_id() for _ in range(2 * IDS_DRAWN_AT_ONCE)}
