"""Played next hops that want a login, and a played token endpoint, as of Microsoft 365 and Google."""

import asyncio
import base64
import contextlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import scramp

from tests.kit.secrets_shown import note
from tests.kit.smtp_servers import ScriptedServer, Session

SECRET = "sw0rdfish-Sesame/42"
REFUSED = "535 5.7.8 Error: authentication failed"


@dataclass
class AuthServer(ScriptedServer):
    """Takes mail of who has logged in. `users`: passwords by name; `tokens`: those that count. `answers`: instead of what is true, one a
    login, then the truth. `challenge`: JSON of the 334 that refuses a token."""

    users: dict[str, str] = field(default_factory=lambda: {"relay": SECRET})
    tokens: set[str] = field(default_factory=set)
    mechanisms: str = "PLAIN LOGIN"
    answers: list[str] = field(default_factory=list)
    challenge: str = '{"status":"401","schemes":"Bearer","scope":"https://mail.example/"}'
    tried: list[tuple[str, str]] = field(default_factory=list)  # mechanism and secret, or user
    known: list[Session] = field(default_factory=list)

    def __post_init__(self) -> None:
        note(*self.users.values(), *self.tokens)

    def _default(self, verb: str) -> str:
        said = super()._default(verb)
        return said if verb != "EHLO" or not self.mechanisms else f"250-test\r\n250-AUTH {self.mechanisms}\r\n{said.partition(chr(10))[2]}"

    async def answer(self, verb: str, session: Session, default: str) -> str:
        if verb == "MAIL" and session not in self.known:
            return "530 5.7.0 Authentication required"
        return await super().answer(verb, session, default)

    async def _reply(self, verb: str, session: Session, default: str, reader: asyncio.StreamReader) -> str:
        if verb != "AUTH":
            return await super()._reply(verb, session, default, reader)

        async def ask(challenge: str) -> str:
            session.writer.write(f"334 {base64.b64encode(challenge.encode()).decode()}\r\n".encode())
            line = (await reader.readline()).decode().rstrip("\r\n")
            return base64.b64decode(line).decode()

        words = session.lines[-1].split(" ")
        first = base64.b64decode(words[2]).decode() if len(words) > 2 else ""
        is_right = await self._is_right(words[1].upper(), first, ask)
        said = self.answers.pop(0) if self.answers else "235 2.7.0 ok" if is_right else REFUSED
        if said.startswith("235"):
            self.known.append(session)
        session.writer.write(said.encode() + b"\r\n")
        await session.writer.drain()
        return "" if said.startswith("421") else said

    async def _is_right(self, mechanism: str, first: str, ask: Callable[[str], Any]) -> bool:
        match mechanism:
            case "PLAIN":
                _, user, secret = first.split("\0")
                self.tried.append((mechanism, secret))
                return self.users.get(user) == secret
            case "LOGIN":
                secret = await ask("Password:")
                self.tried.append((mechanism, secret))
                return self.users.get(first) == secret
            case "CRAM-MD5":
                user, _, digest = (await ask("<1@test>")).partition(" ")
                self.tried.append((mechanism, user))
                return hmac.new(self.users.get(user, "").encode(), b"<1@test>", "md5").hexdigest() == digest
            case "SCRAM-SHA-1" | "SCRAM-SHA-256":
                return await self._scram(mechanism, first, ask)
            case _:
                bearer = first.partition("auth=Bearer ")[2].partition("\x01")[0]
                self.tried.append((mechanism, bearer))
                if bearer in self.tokens and not self.answers:
                    return True
                assert (await ask(self.challenge)) in ("", "\x01")
                return False

    async def _scram(self, mechanism: str, first: str, ask: Callable[[str], Any]) -> bool:
        made = scramp.ScramMechanism(mechanism)
        server = made.make_server(lambda user: made.make_auth_info(self.users.get(user, "other"), iteration_count=4096))
        server.set_client_first(first)
        self.tried.append((mechanism, ""))
        try:
            server.set_client_final(await ask(server.get_server_first()))
        except scramp.ScramException:
            return False
        await ask(server.get_server_final())
        return True


@dataclass
class TokenEndpoint:
    """Answers POST by `answers`: a status and JSON (or text, or octets), one a request, the last one for ever. `%d` in a token is the
    number of the request. `seconds`: how long it takes."""

    answers: list[tuple[int, Any]] = field(default_factory=lambda: [(200, {"access_token": "token-%d", "expires_in": 3600})])
    headers: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    forms: list[dict[str, str]] = field(default_factory=list)
    authorizations: list[str] = field(default_factory=list)
    port: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head.split("\r\n")[1:])}
            body = (await reader.readexactly(int(fields.get("content-length", "0")))).decode()
            self.forms.append({name: values[0] for name, values in parse_qs(body).items()})
            self.authorizations.append(fields.get("authorization", ""))
            with contextlib.suppress(TimeoutError):  # or until the client is gone: from Python 3.12 on a server's end waits for this
                await asyncio.wait_for(reader.read(), self.seconds)
            status, said = self.answers[min(len(self.forms), len(self.answers)) - 1]
            note(*(each for each in said.values() if isinstance(each, str)) if isinstance(said, dict) and status == 200 else ())
            text = said if isinstance(said, str | bytes) else json.dumps(said).replace("%d", str(len(self.forms)))
            more = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
            octets = text if isinstance(text, bytes) else text.encode()
            writer.write(f"HTTP/1.1 {status} x\r\n{more}Content-Length: {len(octets)}\r\nConnection: close\r\n\r\n".encode() + octets)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort() if writer.is_closing() else writer.close()

    def url(self, scheme: str = "http") -> str:
        return f"{scheme}://localhost:{self.port}/oauth2/v2.0/token"


@asynccontextmanager
async def answering(endpoint: TokenEndpoint, tls: ssl.SSLContext | None = None) -> AsyncIterator[TokenEndpoint]:
    server = await asyncio.start_server(endpoint.answer, "127.0.0.1", endpoint.port, ssl=tls)
    endpoint.port = server.sockets[0].getsockname()[1]
    try:
        yield endpoint
    finally:
        server.close()
        await server.wait_closed()
