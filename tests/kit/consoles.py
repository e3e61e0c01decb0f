"""Consoles of running nodes: a cluster whose nodes know each other's APIs and the same people, and a browser without script."""

import re
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from argon2 import PasswordHasher

from shadowrelay.lab.cluster import Cluster, Place
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import AdminRole
from tests.kit.clock import PATIENCE_SECONDS

PLACES = (Place("mx1.east.example", "east"), Place("mx2.east.example", "east"), Place("mx1.west.example", "west"))
TOKENS = {role: f"the-token-of-the-{role.value}" for role in AdminRole}
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)  # the parameters of a hash stand in it
HASHES = {role: CHEAP.hash(token) for role, token in TOKENS.items()}


@asynccontextmanager
async def a_cluster_with_people(
    directory: Path, next_hop: HostPort | None, *, count: int = 2, routes: Mapping[str, HostPort] | None = None, **more: object
) -> AsyncIterator[Cluster]:
    """Running. Each role has a person of its name, whose token is in `TOKENS`."""
    directory.mkdir(exist_ok=True)
    shared = directory / "read-only-token"
    shared.write_text("a-token-that-may-only-read\n")
    shared.chmod(0o600)
    users = [{"name": role.value, "role": role.value, "token_hash": HASHES[role]} for role in AdminRole]
    async with Cluster(
        PLACES[:count],
        next_hop,
        directory=directory,
        routes=routes,
        transport={"reject_message_on_shadow_failure": False, **more},  # type: ignore[dict-item]
        tables={"[admin.users]": users},  # type: ignore[dict-item]
        admin={"read_only_token_file": str(shared)},
    ) as cluster:
        yield cluster


class PlainBrowser:
    """Follows no redirects, and sends forms with the fields of the page that it is on. Use it as a context manager."""

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self.http = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False, transport=transport, verify=False)
        self.csrf = ""

    def __enter__(self) -> "PlainBrowser":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str, **options: object) -> httpx.Response:
        """The page; its CSRF token is used by the next form."""
        response = self.http.get(path, **options)  # type: ignore[arg-type]
        if found := re.search(r'name="csrf" value="([^"]*)"', response.text):
            self.csrf = found[1]
        return response

    def post(self, path: str, **fields: str) -> httpx.Response:
        """A form of that page."""
        return self.http.post(path, data={"csrf": self.csrf, **fields})

    def log_in(self, token: str) -> httpx.Response:
        """By the form."""
        response = self.http.post("/login", data={"token": token})
        if response.status_code == 303:
            self.get("/audit")
        return response


@asynccontextmanager
async def watched_browser(served: str, *, scheme: str = "light", width: int = 1280, **more: object) -> AsyncIterator[tuple[Any, list[str]]]:
    """A page of Debian's chromium, and what went wrong on it: what the console of the browser said, and requests to other hosts. `more`: of
    playwright's `new_context`."""
    from playwright.async_api import async_playwright

    trouble: list[str] = []

    def asked(request: Any) -> None:
        if not request.url.startswith((served, "data:")):
            trouble.append(f"asked {request.url}")

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)  # type: ignore[arg-type]
            page = await context.new_page()
            page.on("console", lambda message: trouble.append(message.text))
            page.on("pageerror", lambda error: trouble.append(str(error)))
            page.on("request", asked)
            yield page, trouble
        finally:
            await browser.close()
