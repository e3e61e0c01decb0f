"""Nothing that another node says becomes markup, whatever it answers, on whatever page."""

import re

import pytest

from shadowrelay.model.settings import Peer
from tests.admin.conftest import ENVELOPE
from tests.console.conftest import SETTINGS
from tests.kit.hostile_node import ID, hostile_node

MARKUP = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}<b>"
SIGNS = ("<script>alert", "<img", "'><", '"><script', "{{ 7", '<b>"', "49")
PAGES = [
    "/", "/queues", "/messages", f"/messages/{ID}", f"/messages/{ENVELOPE.message_id}", "/peers", "/audit", "/safety-net", "/if-lost",
    "/if-lost?servers=other", "/messages?order=oldest", "/messages?since=1h", "/queues?filter=MessageCount -ge 0",
]  # fmt: skip
ACTS = ("queue-suspend", "messages-remove", "forget", "safety-net", MARKUP)
ASKED = [
    *(f"/act?act={act}&node={MARKUP}&on={MARKUP}&back={MARKUP}" for act in ACTS),
    f"/if-lost?servers={MARKUP}", f"/queues?filter={MARKUP}&page={MARKUP}", f"/messages?to={MARKUP}&since={MARKUP}", f"/{MARKUP}",
]  # fmt: skip


@pytest.fixture(params=[200, 0, 503])
def settings(request):
    """With a peer whose answers, and whose errors, are full of markup."""
    with hostile_node(request.param, MARKUP) as url:
        peer = {"name": "other", "site": "west", "address": "127.0.0.1:9", "admin": url}
        yield SETTINGS.model_copy(update={"peers": (Peer.model_validate(peer),)})


def stray(text):
    """What of the markup is in the page as such; 49 only in place of the template's expression."""
    shown = text.replace("{{ 7 * 7 }}", "")
    return [sign for sign in SIGNS if sign in shown and (sign != "49" or re.search(r"alert\(2\)&gt;49", shown))]


async def test_no_page_shows_markup_of_another_node_nor_fails(browser):
    for path in PAGES:
        response = await browser.get(path)
        assert (path, 200, []) == (path, response.status_code, stray(response.text))


async def test_no_page_shows_markup_of_an_address_nor_fails(browser):
    for path in ASKED:
        response = await browser.get(path)
        assert (path, True, []) == (path, response.status_code < 500 or response.status_code == 503, stray(response.text))
