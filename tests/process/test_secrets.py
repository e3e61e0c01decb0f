"""A node that logs in at a next hop shows its secrets to nobody: neither in logs, the API, metrics, commands, nor tracking rows."""

import asyncio
import base64
import signal
import ssl
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import trustme

from shadowrelay.lab.cluster import NodeProcess
from tests.kit.auth_servers import SECRET, AuthServer, TokenEndpoint, answering
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.processes import a_node_process, operator_events, typed
from tests.kit.smtp_servers import serving

pytestmark = pytest.mark.slow

CLIENT_SECRET = "cl1ent-Secret~for.the-app"
TOKENS = [f"eyJ0eXAi.token-number-{number}.s1gnature" for number in (1, 2)]
PATHS = ("/metrics", "/api/v1/node", "/api/v1/queues", "/api/v1/messages", "/api/v1/peers", "/openapi.json")


def forms_of(secret: str, user: str) -> list[str]:
    """As it may be said or quoted."""
    octets = [secret.encode(), f"\0{user}\0{secret}".encode(), f"user={user}\x01auth=Bearer {secret}\x01\x01".encode()]
    return [secret, *(base64.b64encode(one).decode() for one in octets)]


async def shown(node: NodeProcess) -> str:
    """All that it says."""
    token = (node.directory / "token").read_text().strip()

    def ask(path: str) -> str:
        with urlopen(Request(f"http://{node.admin}{path}", headers={"Authorization": f"Bearer {token}"}), timeout=20) as answer:
            return answer.read().decode()

    said = [await asyncio.to_thread(ask, path) for path in PATHS]
    commands = (("check",), ("check", "--json"), ("doctor",), ("queue", "list"), ("messages", "list"), ("status",))
    said += [text for words in commands for text in await typed(node, *words, code=None)]
    files = [path for path in node.directory.rglob("*") if path.is_file() and path.suffix.lower() == ".log"]
    return "\n".join([*said, *(path.read_text(errors="replace") for path in files)])


async def test_no_secret_is_shown_when_logins_are_refused_taken_and_reloaded(tmp_path: Path) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(tls)
    directory = tmp_path / "a.example"
    directory.mkdir()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    for name, text in (("secret", SECRET), ("client-secret", CLIENT_SECRET)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o600)
    quoting = f"535 5.7.8 not {SECRET} nor {forms_of(SECRET, 'relay')[2]}"
    by_password = AuthServer(tls=tls, answers=[quoting])
    by_token = AuthServer(tls=tls, mechanisms="XOAUTH2", tokens={TOKENS[1]}, challenge=f'{{"status":"401","error":"{TOKENS[0]}"}}')
    answers = [(200, {"access_token": token}) for token in TOKENS]
    refusing = [(401, {"error": "invalid_client", "error_description": f"{CLIENT_SECRET} has expired"}), *answers]
    async with serving(by_password, by_token), answering(TokenEndpoint(refusing)) as endpoint:
        token = f'endpoint = "{endpoint.url()}", client_id = "app", client_secret_file = "client-secret"'
        routes = [
            (by_password.port, "here.example", 'user = "relay", secret_file = "secret"'),
            (by_token.port, "there.example", f'user = "box@corp.example", token = {{ {token} }}'),
        ]
        tables = ""
        for port, domain, auth in routes:
            hop = f'next_hop = "localhost:{port}"\ntls_authority = "authority.pem"\n'
            tables += f'[[routes]]\nrecipients = ["*@{domain}"]\n{hop}auth = {{ {auth} }}\n'
        node = a_node_process(directory, connector='relay_from = ["127.0.0.1/32"]')
        file = directory / "node.toml"
        elsewhere = '[[routes]]\nrecipients = ["*"]\nnext_hop = "127.0.0.1:9"\n'
        assert elsewhere in file.read_text()
        file.write_text(file.read_text().replace(elsewhere, f'[send]\nqueue_glitch_retry_interval = "300ms"\n{tables}'))
        try:
            await node.start()
            async with talking_to(node.address) as client:
                await client.mail(["user@here.example", "user@there.example"])
            await until(lambda: bool(operator_events(node, "login.refused")) and bool(operator_events(node, "token.not_got")))
            refused = await shown(node)
            node.signal(signal.SIGHUP)
            await until(lambda: bool(operator_events(node, "configuration.reloaded")))
            await until(lambda: bool(by_password.messages))
            await until(lambda: bool(by_token.messages))
            taken = await shown(node)
            events = operator_events(node)
        finally:
            await node.stop()

    everything = (
        refused
        + taken
        + "".join(map(str, events))
        + "".join(
            path.read_text(errors="replace") for path in directory.rglob("*") if path.is_file() and path.suffix.lower() in (".log", ".toml")
        )
    )
    secrets = [*forms_of(SECRET, "relay"), CLIENT_SECRET, *(form for token in TOKENS for form in forms_of(token, "box@corp.example"))]
    assert [] == [secret for secret in secrets if secret in everything]
    assert "S:Auth=PLAIN relay" in everything
    assert "S:Auth=XOAUTH2 box@corp.example" in everything
    assert 'shadowrelay_next_hop_logins_total{result="accepted"}' in everything
    assert "451 4.7.8 The next hop does not accept the login of relay by PLAIN: 535 5.7.8 not [left out] nor [left out]" in everything
