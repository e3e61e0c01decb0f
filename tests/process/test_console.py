"""Consoles of a running cluster: what is shown of all nodes, and what is done on another one."""

import re
import shutil
from pathlib import Path

import pytest

from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import AdminRole
from tests.kit.clients import submit
from tests.kit.clock import PATIENCE_SECONDS, wait_until
from tests.kit.consoles import TOKENS, PlainBrowser, a_cluster_with_people, watched_browser
from tests.kit.processes import operator_events, wait_until_peers_know_each_other

pytestmark = pytest.mark.usefixtures("warm_starts")

NOWHERE = HostPort("127.0.0.1", 9)


async def test_one_console_shows_all_nodes_and_acts_on_each_in_the_persons_name(tmp_path: Path) -> None:
    async with a_cluster_with_people(tmp_path / "nodes", NOWHERE) as cluster:
        one, other = cluster.nodes.values()
        wait_until_peers_know_each_other([one, other])
        await submit(other.address, "b@x.example")
        with PlainBrowser(f"http://{one.admin}") as browser:
            assert 303 == browser.log_in(TOKENS[AdminRole.OPERATOR]).status_code
            front = re.sub(r"<[^>]+>", " ", browser.get("/").text)
            assert all(name in front for name in cluster.nodes)
            queue = rf"{other.name}\{NOWHERE}"
            wait_until(lambda: queue.partition("\\")[2] in browser.get("/queues").text, what="the queue of the other node is listed")
            browser.get("/act", params={"act": "queue-suspend", "node": other.name, "on": queue})
            browser.post("/act", act="queue-suspend", node=other.name, on=queue, back="/queues")

            wait_until(lambda: "is suspended" in browser.get("/queues").text, what="the queue is shown as suspended")
            wait_until(lambda: "queues/suspend" in browser.get("/audit").text, what="the audit has that of the other node, too")
        (acted,) = wait_until(lambda: operator_events(other, "admin.acted"))
        assert ("operator", "queues/suspend", "done") == (acted["by"], acted["act"], acted["outcome"])
        assert ["operator"] == [line["by"] for line in wait_until(lambda: operator_events(other, "queue.suspended"))]
        assert [] == operator_events(one, "admin.acted")


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium: apt-get install chromium")
async def test_an_open_page_shows_a_killed_node_and_a_drain_without_a_reload(tmp_path: Path) -> None:
    async with a_cluster_with_people(tmp_path / "nodes", NOWHERE, shadow_resubmit_time_span="600s") as cluster:
        one, other = cluster.nodes.values()
        wait_until_peers_know_each_other([one, other])
        await submit(other.address, "b@x.example")
        async with watched_browser(f"http://{one.admin}") as (page, trouble):
            page.set_default_timeout(1000 * PATIENCE_SECONDS)
            await page.goto(f"http://{one.admin}")
            await page.fill("#token", TOKENS[AdminRole.OPERATOR])
            await page.keyboard.press("Enter")
            await page.wait_for_selector("text=Live: this page follows")
            await page.evaluate("window.isTheSame = true")
            await other.kill()
            await page.wait_for_selector("text=Taken over in")
            assert await page.evaluate("window.isTheSame")

            await page.click("text=Drain >> nth=0")
            await page.click("button:has-text('Drain this node')")
            await page.wait_for_selector("text=Undrain")
            await page.click("text=Log out")
            await page.goto(f"http://{one.admin}/queues")
            assert "/login" in page.url

        assert [] == [text for text in trouble if "username" not in text]
        assert ["drain"] == [line["act"] for line in wait_until(lambda: operator_events(one, "admin.acted"))]


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium: apt-get install chromium")
async def test_an_open_page_of_a_node_that_was_killed_says_so_and_leads_to_the_login_when_it_is_back(tmp_path: Path) -> None:
    async with a_cluster_with_people(tmp_path / "nodes", NOWHERE) as cluster:
        one = next(iter(cluster.nodes.values()))
        async with watched_browser(f"http://{one.admin}") as (page, _):
            page.set_default_timeout(1000 * PATIENCE_SECONDS)
            await page.goto(f"http://{one.admin}/peers")
            await page.fill("#token", TOKENS[AdminRole.VIEWER])
            await page.keyboard.press("Enter")
            await page.wait_for_selector("text=Live: this page follows")
            await one.kill()
            await page.wait_for_selector("text=This node does not answer: what you see is old")
            await one.start()
            await page.wait_for_url("**/login?next=**")
            await page.fill("#token", TOKENS[AdminRole.VIEWER])
            await page.keyboard.press("Enter")
            await page.wait_for_selector("text=Live: this page follows")
            assert page.url.endswith("/peers")


async def test_a_lost_node_is_shown_as_the_others_know_it(tmp_path: Path) -> None:
    async with a_cluster_with_people(tmp_path / "nodes", NOWHERE, shadow_resubmit_time_span="600s") as cluster:
        one, other = cluster.nodes.values()
        wait_until_peers_know_each_other([one, other])
        await submit(other.address, "b@x.example")
        await other.kill()
        with PlainBrowser(f"http://{one.admin}") as browser:
            browser.log_in(TOKENS[AdminRole.VIEWER])

            def front() -> str:
                return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", browser.get("/").text))

            wait_until(lambda: f"{one.name} takes over in" in front(), what="the countdown")
            wait_until(lambda: "lost" in front().partition(other.name)[2], what="the other node is called lost")
            held = "1 or more messages that only one living server has They are lost if that server burns now"
            wait_until(lambda: f"{held}. Copies for servers that do not answer: 1." in front(), what="the copy for the lost node")
            # Until the last heartbeat is old enough, new mail is "perhaps not redundant".
            wait_until(lambda: "accepted without a copy" in front(), what="what happens to new mail")
