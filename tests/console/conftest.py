"""A console on a node that is made of values."""

import asyncio
from datetime import timedelta

import httpx
import pytest

from shadowrelay.admin.api import make_application
from shadowrelay.admin.audit import AuditTrail
from shadowrelay.admin.guard import guarded
from shadowrelay.admin.metrics import PrometheusMetrics
from shadowrelay.admin.people import People
from shadowrelay.console.acts import add_acts
from shadowrelay.console.pages import Desk, add_errors, add_login, add_pages
from shadowrelay.console.report_tab import add_report
from shadowrelay.console.streams import add_streams
from shadowrelay.model.counts import Counts
from shadowrelay.model.ids import ServerName
from shadowrelay.model.queue import InForce
from shadowrelay.model.settings import AdminRole, AdminUser, Settings
from shadowrelay.model.values import replace
from shadowrelay.tracking.event_tap import EventTap
from tests.admin.conftest import NOW, READ_ONLY_TOKEN, TOKEN, FakeNode
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.consoles import HASHES

USERS = [{"name": role.value, "role": role, "token_hash": HASHES[role]} for role in AdminRole]
SETTINGS = Settings.model_validate({"server": {"name": "mx1", "site": "east"}, "admin": {"users": USERS}})


class Time:
    """Set by hand."""

    def __init__(self):
        self.now = NOW

    def pass_by(self, **much):
        self.now += timedelta(**much)


class ShownNode(FakeNode):
    """With the settings that `status` reads."""

    async def tell(self):
        return replace(await super().tell(), in_force=InForce({"transport.shadow_redundancy_enabled": True}))


@pytest.fixture
def node():
    """The node behind the console."""
    return ShownNode()


@pytest.fixture
def time():
    """Of sessions."""
    return Time()


@pytest.fixture
def trail():
    """What was written."""
    return AuditTrail(lambda: NOW)


@pytest.fixture
def tap():
    """The events of the node."""
    return EventTap()


@pytest.fixture
def settings():
    """Of the node."""
    return SETTINGS


def console_of(node, time, trail, tap, settings):
    """API and console, with a person of each role, and the desk behind the pages."""
    users = tuple(AdminUser.model_validate(user) for user in USERS)
    people = People(TOKEN, READ_ONLY_TOKEN, users)
    metrics = PrometheusMetrics("1.2.3", ServerName("mx1"), Counts(), now=lambda: NOW)
    api = make_application(node, metrics, people, "1.2.3", trail=trail, names=("mx1",), now=lambda: NOW)
    desk = Desk(settings, people, api, TOKEN, lambda: time.now)
    add_errors(api, desk)
    add_login(api, desk)
    add_pages(api, desk)
    add_acts(api, desk)
    add_report(api, desk)
    add_streams(api, desk, tap, guarded(people, trail))
    return api, desk


@pytest.fixture
def application(node, time, trail, tap, settings):
    """API and console."""
    api, desk = console_of(node, time, trail, tap, settings)
    yield api
    desk.nodes.forget()


class InLoop(httpx.AsyncBaseTransport):
    """The application in the test's loop."""

    def __init__(self, application, client):
        self._transport = httpx.ASGITransport(application, raise_app_exceptions=False, client=client)

    async def handle_async_request(self, request):
        return await asyncio.wait_for(self._transport.handle_async_request(request), PATIENCE_SECONDS)


@pytest.fixture
async def stranger(application):
    """A browser before the login."""
    async with httpx.AsyncClient(transport=InLoop(application, ("192.0.2.9", 5)), base_url="http://mx1") as client:
        yield client


@pytest.fixture
async def browser_of(application):
    """Logged in with this token."""
    clients = []

    async def logged_in(token):
        client = httpx.AsyncClient(transport=InLoop(application, ("192.0.2.8", 5)), base_url="http://mx1")
        clients.append(client)
        assert 303 == (await client.post("/login", data={"token": token})).status_code
        return client

    yield logged_in
    for client in clients:
        await client.aclose()


@pytest.fixture
async def browser(browser_of):
    """Of the administrator."""
    return await browser_of(TOKEN)
