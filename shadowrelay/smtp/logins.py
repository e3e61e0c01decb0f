"""AUTH at next hops, with passwords and tokens. RFC 4954; docs/reference.md "Login at next hops".

aiosmtplib says PLAIN, LOGIN and CRAM-MD5, scramp is SCRAM; XOAUTH2 and OAUTHBEARER are said here, because what the server answers to a
token that it refuses is the reason that an operator needs.

A refused login is the fault of the route: whoever calls gets a transient reply, and nothing is returned to a sender. Servers lock users out
who fail often, so a login that was not accepted yet is tried by one session at a time, and after a refusal by nobody for `PAUSE_SECONDS`,
unless the secret has changed. No reply, log line or exception has a secret in it: replies are searched for what was said.
"""

import asyncio
import base64
import binascii
import contextlib
import json
import re
from collections.abc import Sequence

import aiosmtplib
import scramp  # type: ignore[import-untyped]
import structlog
from aiosmtplib.auth import auth_xoauth2_encode

from shadowrelay import credentials
from shadowrelay.bounded import FILES
from shadowrelay.model.counts import LoginResult, SessionCounts
from shadowrelay.model.numbers import decimal
from shadowrelay.model.printable import printable
from shadowrelay.model.protection import Login, Mechanism
from shadowrelay.model.replies import ConfigurationError, Reply
from shadowrelay.smtp.client_session import SERVICE_CLOSING, SessionBroken, reply_from
from shadowrelay.smtp.secrets_in_text import without
from shadowrelay.smtp.tokens import NoToken, TokenSource

PAUSE_SECONDS = 30.0
ITERATIONS_MAX = 1_000_000  # of SCRAM: the server decides how much we compute
REASON_CHARACTERS_MAX = 300

LOGIN_FAILED = Reply(451, "4.7.8", "The next hop does not accept the login")  # RFC 4954 6
NO_SECRET = Reply(451, "4.7.0", "This node has no secret for its login")
NOT_OFFERED = Reply(451, "4.7.0", "The next hop offers no mechanism for the login")

# The best first. Over TLS that is not verified, mechanisms that do not tell the server the secret come before those that do.
WITH_PASSWORD = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_1, Mechanism.PLAIN, Mechanism.LOGIN, Mechanism.CRAM_MD5)
UNVERIFIED = (Mechanism.SCRAM_SHA_256, Mechanism.SCRAM_SHA_1, Mechanism.CRAM_MD5, Mechanism.PLAIN, Mechanism.LOGIN)
WITH_TOKEN = (Mechanism.XOAUTH2, Mechanism.OAUTHBEARER)
_ITERATIONS = re.compile(r"(?:\A|,)i=(\d{1,12})(?:,|\Z)")

_log = structlog.get_logger()


class LoginFailed(SessionBroken):
    """There is no session, because this node could not log in. Never a refusal of the session: it is the route's fault."""

    def __init__(self, reply: Reply, result: LoginResult) -> None:
        super().__init__(reply)
        self.result = result


def chosen(wanted: Mechanism, offered: Sequence[str], *, has_token: bool, is_verified: bool) -> Mechanism | None:
    """The mechanism to use; `None` if the server offers none that may be used. `offered` in any case."""
    names = {name.upper() for name in offered}
    if wanted is not Mechanism.AUTO:
        return wanted if wanted.value in names else None
    order = WITH_TOKEN if has_token else WITH_PASSWORD if is_verified else UNVERIFIED
    return next((mechanism for mechanism in order if mechanism.value in names), None)


class LoginAt:
    """A login at one next hop: what all sessions with it share."""

    def __init__(self, login: Login, name: str, counts: SessionCounts, tokens: TokenSource | None, *, is_verified: bool) -> None:
        self._login, self._name, self._counts, self._tokens = login, name, counts, tokens
        self._is_verified = is_verified
        self._turn = asyncio.Lock()
        self._is_proved = False
        self._refused: tuple[float, str, Reply] | None = None  # until when nobody tries again, with which secret, and why
        self.is_failing = False

    async def secret(self) -> str:
        """The password or token. Raises: LoginFailed if there is none, or the server has just refused it."""
        self._check_pause("")
        try:
            if self._tokens is not None:
                return await self._tokens.get()
            place = credentials.secret_of(self._login)
            secret = await FILES.read(place.files(), place.read)
        except (ConfigurationError, TimeoutError) as error:
            raise self._failed(NO_SECRET._replace(text=f"{NO_SECRET.text}: {error}"), LoginResult.NO_SECRET) from None
        except NoToken as error:
            raise self._failed(error.reply, LoginResult.NO_TOKEN) from None
        self._check_pause(secret)
        return secret

    def _check_pause(self, secret: str) -> None:
        """A token that was refused may be replaced by another one that is refused, too; a password that was replaced is tried at once."""
        if self._refused is None or asyncio.get_running_loop().time() >= self._refused[0]:
            return
        if self._refused[1] == secret:
            raise LoginFailed(self._refused[2], LoginResult.REFUSED)

    async def run(self, secret: str, client: aiosmtplib.SMTP) -> str:
        """Log in; the mechanism and the user. Raises: LoginFailed, and what the connection raises."""
        if self._is_proved:
            return await self._log_in(secret, client)
        async with self._turn:
            self._check_pause("" if self._tokens is not None else secret)
            return await self._log_in(secret, client)

    async def _log_in(self, secret: str, client: aiosmtplib.SMTP) -> str:
        offered = client.server_auth_methods
        mechanism = chosen(self._login.mechanism, offered, has_token=self._tokens is not None, is_verified=self._is_verified)
        if mechanism is None:
            names = printable(" ".join(offered).upper())[:REASON_CHARACTERS_MAX] or "no AUTH"
            raise self._failed(NOT_OFFERED._replace(text=f"{NOT_OFFERED.text}: it offers {names}"), LoginResult.NOT_OFFERED)
        reply = await self._said(mechanism, secret, client)
        if reply.code >= 500 and self._tokens is not None and self._tokens.drop(secret) and client.is_connected:
            try:
                secret = await self._tokens.get()  # that one was in use before; it may have been revoked
            except NoToken as error:
                raise self._failed(error.reply, LoginResult.NO_TOKEN) from None
            reply = await self._said(mechanism, secret, client)
        if reply.code == 235:
            if self._tokens is not None:
                self._tokens.accepted(secret)
            self._accepted(mechanism)
            return f"{mechanism.value} {self._login.user}"
        text = f"{LOGIN_FAILED.text} of {self._login.user} by {mechanism.value}: {reply}"
        is_refusal = 500 <= reply.code < 600
        if is_refusal:
            self._is_proved = False
            kept = "" if self._tokens is not None else secret
            self._refused = asyncio.get_running_loop().time() + PAUSE_SECONDS, kept, LOGIN_FAILED._replace(text=text)
        raise self._failed(LOGIN_FAILED._replace(text=text), LoginResult.REFUSED if is_refusal else LoginResult.DEFERRED)

    def _accepted(self, mechanism: Mechanism) -> None:
        self._counts.logins[LoginResult.ACCEPTED] += 1
        if self.is_failing:
            _log.warning("login.accepted", server=self._name, user=self._login.user, mechanism=mechanism.value)
        self._is_proved, self._refused, self.is_failing = True, None, False

    def _failed(self, reply: Reply, result: LoginResult) -> LoginFailed:
        self._counts.logins[result] += 1
        if result is not LoginResult.DEFERRED:
            if not self.is_failing:
                _log.error("login.refused", server=self._name, user=self._login.user, what=result.value, reply=str(reply))
            self.is_failing = True
        return LoginFailed(reply, result)

    # what is said

    async def _said(self, mechanism: Mechanism, secret: str, client: aiosmtplib.SMTP) -> Reply:
        """The server's last reply, with all that it says about a refusal, and without the secret. Raises: SessionBroken for a 421."""
        user, details = self._login.user, ""
        try:
            match mechanism:
                case Mechanism.PLAIN:
                    answer = await client.auth_plain(user, secret)
                case Mechanism.LOGIN:
                    answer = await client.auth_login(user, secret)
                case Mechanism.CRAM_MD5:
                    answer = await client.auth_crammd5(user, secret)
                case Mechanism.SCRAM_SHA_1 | Mechanism.SCRAM_SHA_256:
                    answer = await _scram(client, mechanism, user, secret)
                case _:
                    answer, details = await _bearer(client, mechanism, user, secret)
            code, message = answer.code, answer.message
        except aiosmtplib.SMTPAuthenticationError as error:
            code, message = (454, "4.7.0 It took the login before it was said") if error.code == 235 else (error.code, error.message)
        except (scramp.ScramException, ValueError) as error:
            code, message = 535, f"5.7.8 {error}"
        reply = reply_from(code, message.split("\n") or [""])
        text = without(printable(f"{reply.text} {details}".strip()), [secret], [f"\0{user}\0{secret}"])[:REASON_CHARACTERS_MAX]
        reply = reply._replace(text=text)
        if code == SERVICE_CLOSING:
            raise SessionBroken(reply, is_refusal=True)
        if code == 235 or 400 <= code < 600:
            return reply
        return Reply(454, "4.7.0", f"{code} out of place: {text}")


async def _scram(client: aiosmtplib.SMTP, mechanism: Mechanism, user: str, secret: str) -> aiosmtplib.SMTPResponse:
    """RFC 5802, RFC 7677. The server proves that it knows the secret, too, or the login counts as refused."""
    exchange = scramp.ScramClient([mechanism.value], user, secret)
    answer = await client.execute_command(b"AUTH", mechanism.value.encode(), _encoded(exchange.get_client_first()))
    if answer.code != 334:
        return _unless_accepted(answer)
    first = _decoded(answer.message)
    found = _ITERATIONS.search(first)
    if found is None or decimal(found[1], ITERATIONS_MAX) is None:
        raise ValueError("the server asks for too many iterations")
    exchange.set_server_first(first)
    answer = await client.execute_command(_encoded(await asyncio.to_thread(exchange.get_client_final)))
    if answer.code != 334:
        return _unless_accepted(answer)
    exchange.set_server_final(_decoded(answer.message))
    return await client.execute_command(b"")


def _unless_accepted(answer: aiosmtplib.SMTPResponse) -> aiosmtplib.SMTPResponse:
    if answer.code == 235:
        raise ValueError("the server did not prove that it knows the secret")
    return answer


async def _bearer(client: aiosmtplib.SMTP, mechanism: Mechanism, user: str, token: str) -> tuple[aiosmtplib.SMTPResponse, str]:
    """RFC 7628, and what Google and Microsoft made of it. A refusal has two steps: 334 with JSON that says why, which is answered with
    nothing, and then the reply."""
    if mechanism is Mechanism.XOAUTH2:
        said, nothing = auth_xoauth2_encode(user, token), b""
    else:
        authority = user.replace("=", "=3D").replace(",", "=2C")
        said, nothing = _encoded(f"n,a={authority},\x01auth=Bearer {token}\x01\x01"), _encoded("\x01")
    answer = await client.execute_command(b"AUTH", mechanism.value.encode(), said)
    if answer.code != 334:
        return answer, ""
    return await client.execute_command(nothing), _status_in(answer.message)


def _status_in(challenge: str) -> str:
    """`(status 401, schemes Bearer)`, from the JSON in a 334; what is not understood is left out."""
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(_decoded(challenge))
        if isinstance(found, dict):
            words = [f"{name} {str(found[name])[:100]}" for name in ("status", "schemes", "error") if found.get(name)]
            return f"({', '.join(words)})" if words else ""
    return ""


def _encoded(text: str) -> bytes:
    return base64.b64encode(text.encode())


def _decoded(text: str) -> str:
    """Raises: ValueError."""
    try:
        return base64.b64decode(text.strip(), validate=True).decode()
    except binascii.Error as error:
        raise ValueError("the server's challenge is not base64") from error
