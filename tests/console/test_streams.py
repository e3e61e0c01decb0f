"""Streams: open pages that follow what happens, and events for programs."""

import asyncio
import contextlib
import json
import os
import re
import socket
import stat

import httpx
import pytest

from shadowrelay.admin import server as admin_server
from shadowrelay.admin.gate import STREAMS_MAX
from shadowrelay.admin.server import AdminServer
from shadowrelay.console import streams
from shadowrelay.model.event_names import CATALOGUE
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import AdminRole
from shadowrelay.tracking.event_tap import KEPT_MAX, EventTap
from tests.admin.conftest import TOKEN
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.consoles import TOKENS
from tests.kit.pages import OPERATORS
from tests.tidy.house import SOURCES

BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def served(application, monkeypatch):
    """The console on a socket, with parts that are made often."""
    monkeypatch.setattr(streams, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(streams, "FRESH_SECONDS", 0.01)
    server = AdminServer(application, HostPort("127.0.0.1", 0))
    await server.start()
    yield f"http://{server.address}"
    await server.stop()


@pytest.fixture
async def looking(served):
    """A browser that has logged in."""
    async with httpx.AsyncClient(base_url=served, timeout=20, trust_env=False) as client:
        await client.post("/login", data={"token": TOKEN})
        yield client


async def lines_of(response, until, lines=None):
    """Its lines up to the first that holds this; `lines`: an iterator that was begun."""
    seen = []
    async for line in response.aiter_lines() if lines is None else lines:
        seen.append(line)
        if until in line:
            return seen
    raise AssertionError(f"the stream ended without {until}: {seen}")


def noted(tap, *names):
    for name in names:
        tap(None, "info", {"event": name, "level": "info", "server": "mx2", "note": "to <a@x.example>"})


async def test_an_open_page_follows_what_happens(looking, node):
    async with looking.stream("GET", "/live?path=/queues") as response:
        assert "text/event-stream" in response.headers["content-type"]
        await lines_of(response, "x.example")
        node.reasons = ("starting",)
    async with looking.stream("GET", "/live?path=/") as response:
        await lines_of(response, "starting")


async def test_an_open_page_in_another_tab_takes_no_notice_away(looking):
    """What was just done, and how to take it back, is told once: on the next page, not to a stream that does not show it."""
    csrf = re.search(r'name="csrf" value="([^"]+)"', (await looking.get("/")).text)[1]
    async with looking.stream("GET", "/live?path=/peers") as response:
        lines = response.aiter_lines()
        await lines_of(response, "event: part", lines)
        done = await looking.post(
            "/act", data={"csrf": csrf, "act": "queue-suspend", "node": "mx1", "on": "mx1\\x.example", "back": "/queues"}
        )
        assert 303 == done.status_code
        for _ in range(3):
            await lines_of(response, "event: part", lines)

    assert '<div class="notice good"' in (await looking.get("/queues")).text


async def test_a_stream_ends_with_the_session(looking):
    csrf = re.search(r'name="csrf" value="([^"]+)"', (await looking.get("/")).text)[1]
    async with looking.stream("GET", "/live?path=/") as response:
        lines = response.aiter_lines()
        await lines_of(response, "event: part", lines)
        await looking.post("/logout", data={"csrf": csrf})
        await lines_of(response, "event: gone", lines)


@pytest.mark.parametrize("path", ["/messages", "/login", "//evil", ""])
async def test_only_pages_that_move_have_a_stream(browser, path):
    assert 204 == (await browser.get("/live", params={"path": path})).status_code


async def test_strangers_get_no_stream(stranger):
    assert (204, "") == ((found := await stranger.get("/live?path=/")).status_code, found.text)
    assert 401 == (await stranger.get("/api/v1/events?follow=false")).status_code


async def test_viewers_of_one_page_share_its_making(looking, node, monkeypatch):
    monkeypatch.setattr(streams, "FRESH_SECONDS", 100.0)
    made = 0

    async def counted(*arguments):
        nonlocal made
        made += 1
        return "part"

    monkeypatch.setattr(streams, "live_part", counted)

    async def look():
        async with looking.stream("GET", "/live?path=/") as response:
            await lines_of(response, "data: part")

    await asyncio.gather(*(look() for _ in range(8)))
    assert 1 == made


async def test_only_so_many_look_at_once(served, looking):
    async with asyncio.timeout(60):
        opened = [looking.stream("GET", "/live?path=/") for _ in range(STREAMS_MAX)]
        for stream in opened:
            assert 200 == (await stream.__aenter__()).status_code
        refused = await looking.get("/live?path=/")
        for stream in opened:
            await stream.__aexit__(None, None, None)

    assert (503, "1") == (refused.status_code, refused.headers["retry-after"])


async def test_a_viewer_who_does_not_read_is_dropped_with_all_that_was_kept_for_it(served, looking, monkeypatch):
    monkeypatch.setattr(streams, "SLOW_SECONDS", 0.2)
    monkeypatch.setattr(admin_server, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(admin_server, "REQUEST_SECONDS", 1.0)

    async def large(*_):
        return "x" * 2**20

    monkeypatch.setattr(streams, "live_part", large)
    url, (cookie,) = httpx.URL(served), looking.cookies.jar
    with socket.create_connection((url.host, url.port)) as slow:
        ours = slow.getsockname()
        slow.sendall(f"GET /live?path=/ HTTP/1.1\r\nHost: mx1\r\nCookie: {cookie.name}={cookie.value}\r\n\r\n".encode())
        await until(lambda: ours in clients_of(url.port), what="it looks")
        async with looking.stream("GET", "/live?path=/") as response:  # another one goes on
            lines = response.aiter_lines()
            async with asyncio.timeout(PATIENCE_SECONDS):
                while ours in clients_of(url.port):
                    await lines_of(response, "event: part", lines)


def clients_of(port):
    """The other ends of the connections that this process has on that port of its own."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            duplicate = os.dup(int(name))
        except OSError:
            continue
        if not stat.S_ISSOCK(os.fstat(duplicate).st_mode):
            os.close(duplicate)
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=duplicate) as one:
            if one.family == socket.AF_INET and one.getsockname()[1] == port:
                found.add(one.getpeername())
    return found


async def test_events_go_on_from_a_position(browser, tap):
    noted(tap, "peer.lost", "primary.lost", "peer.session_opened")
    text = (await browser.get("/api/v1/events?follow=false", headers=BEARER)).text
    events = [json.loads(line) for line in text.splitlines()]
    rest = (await browser.get(f"/api/v1/events?follow=false&after={events[1]['position']}", headers=BEARER)).text

    assert ["peer.lost", "primary.lost", "peer.session_opened"] == [event["event"] for event in events]
    assert ["peer.session_opened"] == [json.loads(line)["event"] for line in rest.splitlines()]
    assert {"position", "at", "event", "server", "note"} == set(events[0])
    assert sorted({event["position"] for event in events}) == [event["position"] for event in events]


async def test_who_was_away_for_too_long_is_told_that_events_are_missed(browser, tap):
    noted(tap, "drain.began")
    (first,) = tap.since(0)

    async def names(position):
        text = (await browser.get(f"/api/v1/events?follow=false&after={position}", headers=BEARER)).text
        return [json.loads(line)["event"] for line in text.splitlines()]

    assert [] == await names(first["position"])
    assert ["events.missed", "drain.began"] == await names(5), "of an earlier process"
    noted(tap, *["peer.lost"] * KEPT_MAX)
    assert ["peer.lost"] * KEPT_MAX == await names(first["position"])
    noted(tap, "drain.ended")
    missed = await names(first["position"])
    assert (["events.missed", "peer.lost"], "drain.ended", KEPT_MAX + 1) == (missed[:2], missed[-1], len(missed))
    assert "events.missed" not in (await browser.get("/api/v1/events?follow=false", headers=BEARER)).text


async def test_events_come_as_they_happen_as_lines_and_as_server_sent_events(served, tap):
    async with httpx.AsyncClient(base_url=served, timeout=20, headers=BEARER, trust_env=False) as client:
        async with client.stream("GET", "/api/v1/events") as response:
            await asyncio.sleep(0)
            noted(tap, "pressure.increased")
            lines = await lines_of(response, "pressure.increased")
        known = json.loads(lines[-1])["position"]
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(known)}
        noted(tap, "drain.began")
        async with client.stream("GET", "/api/v1/events", headers=headers) as response:
            lines = await lines_of(response, "data: ")

    assert ["id: ", "event: drain.began", "data: "] == [lines[0][:4], lines[1], lines[2][:6]]


async def test_who_may_not_see_messages_sees_no_address_in_an_event(browser, tap):
    noted(tap, "message.set_aside")
    viewer = {"Authorization": f"Bearer {TOKENS[AdminRole.VIEWER]}"}

    assert "a@x.example" not in (await browser.get("/api/v1/events?follow=false", headers=viewer)).text
    assert "a@x.example" in (await browser.get("/api/v1/events?follow=false", headers=BEARER)).text


def test_what_is_not_in_the_catalogue_is_no_event():
    tap = EventTap()
    noted(tap, "session.closed", "peer.lost")

    assert ["peer.lost"] == [event["event"] for event in tap.since(0)]


def test_not_more_events_are_kept_than_fit():
    tap = EventTap()
    noted(tap, *["peer.lost"] * (KEPT_MAX + 10))

    assert KEPT_MAX == len(tap.since(0))


def test_every_event_of_the_catalogue_is_logged_somewhere_and_documented():
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES if path.name != "event_names.py")
    page = OPERATORS.partition("### Events\n")[2].partition("\n### ")[0]

    assert [] == [name for name in sorted(CATALOGUE) if f'"{name}"' not in code]
    assert [] == [name for name in sorted(CATALOGUE) if f"`{name}`" not in page]
