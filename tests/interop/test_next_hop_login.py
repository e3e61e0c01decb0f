"""Debian's Postfix as a smart host that wants TLS and a login, which Dovecot checks: mail reaches it by each mechanism."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.auth_servers import SECRET
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.postfix import Postfix, is_available, stored_messages
from tests.kit.processes import a_node_process, operator_events, whole_lines
from tests.kit.smart_hosts import DOVECOT, running_smart_host

MECHANISMS = ("PLAIN", "LOGIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256")

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="needs root and Debian's postfix"),
    pytest.mark.skipif(DOVECOT is None, reason="needs Debian's dovecot-core"),
]


@pytest.fixture
def smart_host(tmp_path: Path) -> Iterator[Postfix]:
    with running_smart_host(tmp_path) as postfix:
        yield postfix


async def test_a_smart_host_takes_mail_by_each_mechanism_and_none_without_the_secret(smart_host: Postfix, tmp_path: Path) -> None:
    directory = tmp_path / "a.example"
    directory.mkdir()
    secret = directory / "secret"
    secret.write_text("wrong")
    secret.chmod(0o600)
    node = a_node_process(directory, connector='relay_from = ["127.0.0.1/32"]')
    file = directory / "node.toml"
    elsewhere = '[[routes]]\nrecipients = ["*"]\nnext_hop = "127.0.0.1:9"\n'
    routes = (
        '[send]\nqueue_glitch_retry_interval = "300ms"\nqueue_glitch_retry_count = 255\nunused_session_timeout = "10ms"\n'
        f'[[routes]]\nrecipients = ["*"]\nnext_hop = "localhost:{smart_host.port}"\ntls_authority = "{tmp_path}/authority.pem"\n'
        'auth = { user = "relay", secret_file = "secret", mechanism = "auto" }\n'
    )
    file.write_text(file.read_text().replace(elsewhere, routes))
    mail = tmp_path / "mail"
    try:
        await node.start()
        async with talking_to(node.address) as client:
            await client.mail(["user@corp.example"])
        await until(lambda: bool(operator_events(node, "login.refused")))
        assert not stored_messages(mail)
        secret.write_text(SECRET)
        await until(lambda: len(stored_messages(mail).get("user", [])) == 1)
        for number, mechanism in enumerate(MECHANISMS):
            file.write_text(re.sub(r'mechanism = "[^"]+"', f'mechanism = "{mechanism}"', file.read_text()))
            before = len(operator_events(node, "configuration.reloaded"))
            node.signal(signal.SIGHUP)
            await until(lambda before=before: len(operator_events(node, "configuration.reloaded")) > before)
            async with talking_to(node.address) as client:
                await client.mail(["user@corp.example"])
            await until(lambda number=number: len(stored_messages(mail).get("user", [])) == number + 2)
        log = whole_lines(next((directory / "tracking").rglob("*.LOG")))
    finally:
        await node.stop()

    said = "\n".join(log)
    assert [] == [mechanism for mechanism in MECHANISMS if f"S:Tls=TLSv1.3,verified;S:Auth={mechanism} relay" not in said]
    assert "SCRAM-SHA-256: 535 5.7.8" in str(operator_events(node, "login.refused"))
    assert SECRET not in said + str(operator_events(node))
