"""Access tokens for AUTH: asked for at an endpoint of OAuth 2.0, or printed by a command. RFC 6749; docs/reference.md "Login at next hops"

One token for all sessions of a login. It is renewed in the background when most of its life is over; who needs one while none is valid
waits for the one renewal that runs. After a failure nobody asks again for a while, or for as long as the endpoint says. Endpoint and
command are strangers: everything has a limit, nothing is followed elsewhere, and no answer of theirs reaches a log with a secret in it.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import httpx
import structlog

from shadowrelay import credentials
from shadowrelay.bounded import FILES
from shadowrelay.model.counts import SessionCounts
from shadowrelay.model.numbers import decimal
from shadowrelay.model.printable import printable
from shadowrelay.model.protection import ClientAuthentication, Grant, Login
from shadowrelay.model.replies import ConfigurationError, Reply, ShadowrelayError
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.secrets_in_text import without
from shadowrelay.smtp.web_answers import UNPACKED, BoundedTransport, octets_of, reason_of_request

ASKING_SECONDS = 15.0
COMMAND_SECONDS = 30.0
ANSWER_OCTETS_MAX = 64 * 1024
TOKEN_CHARACTERS_MAX = 8 * 1024  # of a line with AUTH: 12,288 octets in base64. RFC 4954 4
LIFE_SECONDS = 300.0  # where nobody says how long it lives
SECONDS_MAX = 10**12  # that an answer may name
LIFE_SECONDS_MAX = 24 * 3600.0
RENEWED_SHARE = 0.75  # of its life: then the next one is asked for
MARGIN_SECONDS = 10.0  # before its end it counts as ended
PAUSE_SECONDS = 15.0  # after a failure
PAUSE_SECONDS_MAX = 3600.0  # whatever the endpoint says
NO_TOKEN = Reply(451, "4.7.0", "No access token for the login")

_log = structlog.get_logger()


class NoToken(ShadowrelayError):
    """None could be got; `reply` says why."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(str(reply))
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Held:
    """A token. Units: seconds of the event loop."""

    value: str
    renewed_at: float
    ends_at: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is none. A value, because an exception that is raised repeatedly keeps the frames of all who waited alive."""

    reason: str
    pause: float = PAUSE_SECONDS


class TokenSource:
    """The tokens of one login. `directory`: where a refresh token is kept that the endpoint gave in place of the configured one."""

    def __init__(self, login: Login, counts: SessionCounts, directory: Path | None) -> None:
        assert login.token is not None
        self._login, self._token, self._counts = login, login.token, counts
        self._directory = directory
        self._held: Held | None = None
        self._failure: Failure | None = None
        self._paused_until = -inf
        self._renewal: asyncio.Task[None] | None = None
        self._used: set[str] = set()

    async def get(self) -> str:
        """A token that is valid now. Raises: NoToken."""
        now = asyncio.get_running_loop().time()
        if (held := self._held) is not None and now < held.ends_at:
            if now >= held.renewed_at and now >= self._paused_until:
                self._renew()
            return held.value
        if now >= self._paused_until:
            await asyncio.shield(self._renew())
            if (renewed := self._held) is not None and asyncio.get_running_loop().time() < renewed.ends_at:
                return renewed.value
        reason = self._failure.reason if self._failure is not None else "it ended at once"
        raise NoToken(NO_TOKEN._replace(text=f"{NO_TOKEN.text} of {self._login.user}: {reason}"))

    def drop(self, value: str) -> bool:
        """The server refused it: it is not used again. Whether it had been in use, so that another one may help."""
        if self._held is None or self._held.value != value:
            return True  # another session has replaced it meanwhile
        self._held = None
        return value in self._used

    def accepted(self, value: str) -> None:
        """The server has taken it."""
        if value not in self._used:
            self._used = {value}

    def close(self) -> None:
        """Ask for nothing any more."""
        if self._renewal is not None:
            self._renewal.cancel()

    def _renew(self) -> "asyncio.Task[None]":
        if self._renewal is None or self._renewal.done():
            self._renewal = asyncio.get_running_loop().create_task(self._ask())
        return self._renewal

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            got = await (self._by_command() if self._token.command else self._by_endpoint())
        except (ConfigurationError, TimeoutError) as error:
            got = Failure(str(error))
        except Exception as error:  # of whatever library: its text might quote the request
            got = Failure(f"{type(error).__name__} at {self._where}")
        self._counts.tokens[not isinstance(got, Failure)] += 1
        if isinstance(got, Failure):
            self._failure, self._paused_until = got, loop.time() + got.pause
            _log.warning("token.not_got", user=self._login.user, endpoint=self._where, reason=got.reason)
            return
        value, seconds = got
        life = min(max(seconds, 0.0), LIFE_SECONDS_MAX)
        self._failure = None
        self._held = Held(value, began + life * RENEWED_SHARE, began + max(life - MARGIN_SECONDS, life / 2))

    @property
    def _where(self) -> str:
        return self._token.command[0] if self._token.command else self._token.endpoint.partition("?")[0]

    # an endpoint

    async def _by_endpoint(self) -> tuple[str, float] | Failure:
        token = self._token
        form, secrets = {"grant_type": "client_credentials"}, list[str]()
        client_secret = credentials.client_secret_of(self._login)
        if client_secret.is_given:
            secrets.append(await FILES.read(client_secret.files(), client_secret.read))
        refresh = ""
        if token.grant is Grant.REFRESH_TOKEN:
            refresh = await FILES.read(credentials.refresh_token_of(self._login).files(), self._refresh_token)
            form = {"grant_type": "refresh_token", "refresh_token": refresh}
        if token.scope:
            form["scope"] = token.scope
        authorization: httpx.BasicAuth | None = None
        if secrets and token.client_authentication is ClientAuthentication.BASIC:
            authorization = httpx.BasicAuth(token.client_id, secrets[0])
        else:
            form |= {"client_id": token.client_id} | ({"client_secret": secrets[0]} if secrets else {})
        verify = await FILES.read(() if token.authority is None else (token.authority,), partial(_context, token.authority))
        headers = {"Accept": "application/json", **UNPACKED}
        transport = BoundedTransport(ANSWER_OCTETS_MAX, verify=verify)
        try:
            async with (
                asyncio.timeout(ASKING_SECONDS),
                httpx.AsyncClient(transport=transport, timeout=ASKING_SECONDS, follow_redirects=False, trust_env=False) as client,
                client.stream("POST", token.endpoint, data=form, headers=headers, auth=authorization) as answer,
            ):
                octets = await octets_of(answer, ANSWER_OCTETS_MAX)
        except TimeoutError:
            return Failure(f"{self._where} did not answer in {ASKING_SECONDS:.0f} s")
        except ValueError as error:
            return Failure(f"the answer of {self._where} cannot be used: {error}")
        except (httpx.HTTPError, OSError) as error:
            return Failure(f"{self._where} cannot be asked: {reason_of_request(error)}")
        found = _object_in(octets)
        if answer.status_code != 200:
            return self._refusal(answer.status_code, found, answer.headers.get("retry-after", ""), [*secrets, refresh])
        got = checked_token(found)
        if not isinstance(got, Failure) and refresh and isinstance(renewed := found.get("refresh_token"), str) and renewed != refresh:
            try:
                await FILES.read(credentials.refresh_token_of(self._login).files(), partial(self._keep, renewed))
            except (ConfigurationError, TimeoutError) as error:
                _log.error("token.not_kept", user=self._login.user, reason=str(error))
        return got

    def _refusal(self, status: int, found: Mapping[str, Any], retry_after: str, secrets: Sequence[str]) -> Failure:
        words = " ".join(str(found[name])[:200] for name in ("error", "error_description") if isinstance(found.get(name), str))
        words = without(words, secrets)
        if found.get("error") == "invalid_grant":
            self._forget_kept()
        seconds = decimal(retry_after, int(PAUSE_SECONDS_MAX)) if retry_after else None
        pause = PAUSE_SECONDS if seconds is None else max(float(seconds), PAUSE_SECONDS)
        if retry_after.isdecimal() and seconds is None:
            pause = PAUSE_SECONDS_MAX
        return Failure(f"{self._where} answers {status} {printable(words)}".strip(), pause)

    # refresh tokens that replace the configured one. RFC 6749 6

    @property
    def _kept_in(self) -> Path | None:
        if self._directory is None:
            return None
        which = hashlib.sha256(repr((self._token.endpoint, self._token.client_id, self._login.user)).encode()).hexdigest()[:16]
        return self._directory / "tokens" / which

    def _refresh_token(self) -> str:
        configured = credentials.refresh_token_of(self._login).read()
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            if (path := self._kept_in) is not None:
                kept = json.loads(path.read_bytes())
                if kept["of"] == hashlib.sha256(configured.encode()).hexdigest() and isinstance(kept["token"], str):
                    return str(kept["token"])
        return configured

    def _keep(self, renewed: str) -> None:
        if (path := self._kept_in) is None:
            return
        try:
            of = hashlib.sha256(credentials.refresh_token_of(self._login).read().encode()).hexdigest()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            new = path.with_suffix(".new")
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(json.dumps({"of": of, "token": renewed}).encode())
                file.flush()
                os.fsync(file.fileno())
            new.replace(path)
        except (OSError, ConfigurationError) as error:
            _log.error("token.not_kept", user=self._login.user, reason=str(getattr(error, "strerror", "") or "its file is gone"))

    def _forget_kept(self) -> None:
        """The configured one is tried next."""
        with contextlib.suppress(OSError):
            if (path := self._kept_in) is not None:
                path.unlink()

    # a command

    async def _by_command(self) -> tuple[str, float] | Failure:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._token.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            return Failure(f"{self._where} cannot be started: {error.strerror}")
        assert process.stdout is not None
        octets = b""
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                while (part := await process.stdout.read(4096)) and len(octets) <= ANSWER_OCTETS_MAX:
                    octets += part
                status = await process.wait() if len(octets) <= ANSWER_OCTETS_MAX else 0
        except TimeoutError:
            return Failure(f"{self._where} did not end in {COMMAND_SECONDS:.0f} s")
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what it has started, which would keep the pipe open
                while await process.stdout.read(4096):
                    pass
                await process.wait()
        if status:
            return Failure(f"{self._where} ended with status {status}")
        if octets.lstrip().startswith(b"{"):
            return checked_token(_object_in(octets))
        return checked_token({"access_token": octets.decode("utf-8", "replace").strip()})


def _context(authority: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"auth.token.authority: {authority} cannot be used; give a readable PEM file") from error


def _object_in(octets: bytes) -> Mapping[str, Any]:
    """Empty if it is no object of JSON."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(octets)
        if isinstance(found, dict):
            return found
    return {}


def checked_token(found: Mapping[str, Any]) -> tuple[str, float] | Failure:
    """The token and how long it lives, in seconds, as an answer says. RFC 6749 5.1."""
    value, kind, seconds = found.get("access_token"), found.get("token_type", "bearer"), found.get("expires_in")
    if not isinstance(value, str) or not value:
        return Failure("the answer has no access_token")
    if len(value) > TOKEN_CHARACTERS_MAX or not value.isascii() or not value.isprintable() or " " in value:
        return Failure("the access_token in the answer is none")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        return Failure("the token in the answer is not of type bearer")
    if isinstance(seconds, str):
        seconds = decimal(seconds, SECONDS_MAX)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= SECONDS_MAX):
        return Failure("the token in the answer ended before it was given")
    return value, LIFE_SECONDS if seconds is None else float(seconds)
