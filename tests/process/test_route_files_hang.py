"""A file of one route, and the report, hang: the node starts, mail of other routes goes on, SIGHUP and SIGTERM work."""

import asyncio
import os
import signal
import ssl
from pathlib import Path

import pytest
import trustme

from shadowrelay.model.settings import AdminRole
from tests.kit.auth_servers import SECRET, AuthServer
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.consoles import HASHES, TOKENS, PlainBrowser
from tests.kit.processes import a_node_process, api_of, figure, operator_events
from tests.kit.smtp_servers import serving

ROUTE = """
[[routes]]
recipients = ["*@{domain}"]
next_hop = "localhost:{port}"
tls_authority = "../authority.pem"
auth = {{ user = "relay", secret_file = "../{secret}" }}
"""


@pytest.mark.parametrize("is_hung_at_start", [pytest.param(False, marks=pytest.mark.heavy), True])
async def test_a_file_that_hangs_costs_the_mail_that_needs_it_until_it_answers(tmp_path: Path, is_hung_at_start: bool) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    for name in ("well", "hung"):
        (tmp_path / name).write_text(SECRET)
        (tmp_path / name).chmod(0o600)

    def hang() -> None:
        (tmp_path / "hung").unlink()
        os.mkfifo(tmp_path / "hung", 0o600)  # opening it does not return

    server = AuthServer(tls=context)
    async with serving(server):
        routes = "".join(ROUTE.format(domain=f"{name}.example", port=server.port, secret=name) for name in ("well", "hung"))
        node = a_node_process(tmp_path / "a.example", tables=routes, connector='accepted_domains = ["well.example", "hung.example"]')
        configuration = node.directory / "node.toml"
        report = node.directory / "report"
        report.mkdir()
        os.mkfifo(report / "report.html")
        text = configuration.read_text().replace('accepted_domains = ["here.example"]\n', "")
        text = text.replace('[[routes]]\nrecipients = ["*"]\nnext_hop = "127.0.0.1:9"\n', "")
        text = text.replace("[admin]\n", '[admin]\nreport = "report"\n')
        text += f'[[admin.users]]\nname = "o"\nrole = "operator"\ntoken_hash = "{HASHES[AdminRole.OPERATOR]}"\n'
        configuration.write_text(text)
        if is_hung_at_start:
            hang()
        await node.start()
        assert node.process is not None
        try:
            if not is_hung_at_start:
                hang()
            await submit(node.address, "b@hung.example")
            await until(lambda: figure(node, "hung_reads") > 0)
            await submit(node.address, "b@well.example")
            await until(lambda: any("b@well.example" in line for line in server.lines))
            with api_of(node) as client:
                await until(lambda: any("/hung hangs" in reason for reason in client.ready()["reasons"]))

            configuration.write_text(text.replace("[tracking]\n", "[tracking]\nmessage_subject_logging_enabled = false\n"))
            node.signal(signal.SIGHUP)
            await until(lambda: bool(operator_events(node, "configuration.reloaded")))

            with PlainBrowser(f"http://{node.admin}") as browser:
                assert 303 == browser.log_in(TOKENS[AdminRole.OPERATOR]).status_code
                asked = asyncio.create_task(asyncio.to_thread(browser.get, "/report/page"))
                await until(lambda: figure(node, "hung_reads") > 1)
                if not is_hung_at_start:  # it answers; the report hangs on
                    (tmp_path / "new").write_text(SECRET)
                    (tmp_path / "new").chmod(0o600)
                    held = os.open(tmp_path / "hung", os.O_RDWR | os.O_NONBLOCK)
                    (tmp_path / "new").replace(tmp_path / "hung")
                    os.close(held)
                    await until(lambda: figure(node, "hung_reads") == 1)
                    with api_of(node) as client:
                        for queue in client.queues('NextHopDomain -like "localhost*"'):
                            client.retry_queue(queue["identity"])
                    await until(lambda: any("b@hung.example" in line for line in server.lines))

                node.signal(signal.SIGTERM)
                await until(lambda: not node.is_running)
                assert 0 == node.process.returncode
                await asyncio.gather(asked, return_exceptions=True)
        finally:
            await node.kill()
