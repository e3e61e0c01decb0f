"""Who is notified of strangers' mail that fails, where many messages fail at a time."""

from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.model.replies import Reply
from shadowrelay.model.tracking import EventId
from shadowrelay.rules.strangers import DSNS_AT_ONCE
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, NO_SUCH_USER, OK, Net, in_virtual_time, nodes

SENDER = "a@x.example"
COUNT = 2 * DSNS_AT_ONCE


async def strangers_mail(net: Net, answer: Reply) -> None:
    net.sink.answer = lambda address: OK if address == SENDER else answer
    for _ in range(COUNT):
        assert (await net.nodes[EAST].accept(client_address="192.0.2.9", connector="default")).is_positive


def notified_count(net: Net) -> int:
    return sum(address == SENDER for _, address, _ in net.sink.arrived)


@in_virtual_time
async def test_all_senders_hear_of_mail_that_expired_in_an_outage(tmp_path: Path) -> None:
    expiration = timedelta(seconds=30)
    async with nodes(tmp_path, EAST, connector={"accepted_domains": ["corp.example"]}, message_expiration_timeout=expiration) as net:
        await strangers_mail(net, BUSY)
        await until(lambda: notified_count(net) >= COUNT, 300)

        assert 0 == net.nodes[EAST].context.counts.notices_suppressed


@in_virtual_time
async def test_few_senders_hear_of_mail_that_is_refused(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, connector={"accepted_domains": ["corp.example"]}) as net:
        await strangers_mail(net, NO_SUCH_USER)
        await until(lambda: notified_count(net) + net.nodes[EAST].context.counts.notices_suppressed >= COUNT, 300)

        assert DSNS_AT_ONCE <= notified_count(net) < COUNT
        rows = net.nodes[EAST].log.rows(EventId.SUPPRESSED)
        assert net.nodes[EAST].context.counts.notices_suppressed == len(rows)
        assert {("DSN", "rate", SENDER, ("user1@corp.example",))} == {
            (row.source.value, row.source_context, row.sender, row.recipients) for row in rows
        }
        failed = {row.network_message_id for row in net.nodes[EAST].log.rows(EventId.FAIL)}
        assert {row.network_message_id for row in rows} < failed


@pytest.mark.parametrize("client", ["10.0.0.9", ""])
@in_virtual_time
async def test_every_client_that_may_relay_hears_of_each_failure(tmp_path: Path, client: str) -> None:
    connector = {"accepted_domains": ["corp.example"], "relay_from": ["10.0.0.0/8"]}
    async with nodes(tmp_path, EAST, connector=connector) as net:
        net.sink.answer = lambda address: OK if address == SENDER else NO_SUCH_USER
        for _ in range(COUNT):
            assert (await net.nodes[EAST].accept(client_address=client, connector="default")).is_positive

        await until(lambda: notified_count(net) >= COUNT, 300)
