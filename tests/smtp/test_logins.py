"""Logins at next hops: what is said, when it is said, whose fault a refusal is, and that nobody learns a secret."""

import asyncio
import base64
import gzip
import json
import os
import ssl
from pathlib import Path

import pytest
import structlog
import trustme

from shadowrelay import bounded, credentials
from shadowrelay.model.counts import LoginResult
from shadowrelay.model.protection import Grant, Login, Mechanism, Protection, TlsMode, Token
from shadowrelay.model.replies import ConfigurationError, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.smtp import logins, tokens
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.logins import chosen
from tests.kit.auth_servers import REFUSED, SECRET, AuthServer, TokenEndpoint, answering
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.smtp_servers import ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, a_deliverer, deliver

AUTHORITY = trustme.CA()


def tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    return context


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    AUTHORITY.cert_pem.write_to_path(tmp_path / "authority.pem")
    return path


def by(login: Login, mode: TlsMode = TlsMode.VERIFIED) -> Protection:
    authority = None
    if mode is TlsMode.VERIFIED:
        authority = next(path for path in (login.secret_file, _file_of(login)) if path is not None).parent / "authority.pem"
    return Protection(mode, authority=authority, login=login)


def _file_of(login: Login) -> Path | None:
    return None if login.token is None else login.token.client_secret_file or login.token.refresh_token_file or login.token.authority


def to(server: ScriptedServer, login: Login, mode: TlsMode = TlsMode.VERIFIED) -> Destination:
    return Destination("route", (HostPort("localhost", server.port),), protection=by(login, mode))


async def deferred(deliverer: SmtpDeliverer, destination: Destination) -> str:
    """Why. A login that is refused is the route's fault: the queue is in Retry, and nothing is returned."""
    with pytest.raises(TransientDeliveryError) as caught:
        await deliver(deliverer, destination)
    assert (True, False) == (caught.value.is_unreachable, caught.value.is_limited)
    return str(caught.value.reply)


# what is said


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256"])
async def test_this_node_logs_in_by_each_mechanism_and_the_report_says_how_and_who(secret: Path, mechanism: str):
    server = AuthServer(tls=tls(), mechanisms=f"GSSAPI {mechanism} NTLM")
    async with serving(server), a_deliverer() as deliverer:
        reports = [await deliver(deliverer, to(server, Login(user="relay", secret_file=secret))) for _ in range(2)]

    assert [({1: TAKEN}, f"{mechanism} relay")] * 2 == [(report.replies, report.login) for report in reports]
    assert [mechanism] == [name for name, _ in server.tried]  # once a session


@pytest.mark.parametrize(
    ("wanted", "offered", "has_token", "is_verified", "expected"),
    [
        (Mechanism.AUTO, "LOGIN PLAIN CRAM-MD5 SCRAM-SHA-1 SCRAM-SHA-256", False, True, Mechanism.SCRAM_SHA_256),
        (Mechanism.AUTO, "login plain cram-md5", False, True, Mechanism.PLAIN),
        (Mechanism.AUTO, "LOGIN PLAIN CRAM-MD5", False, False, Mechanism.CRAM_MD5),
        (Mechanism.AUTO, "PLAIN LOGIN XOAUTH2 OAUTHBEARER", True, True, Mechanism.XOAUTH2),
        (Mechanism.AUTO, "PLAIN LOGIN OAUTHBEARER", True, True, Mechanism.OAUTHBEARER),
        (Mechanism.AUTO, "PLAIN LOGIN", True, True, None),
        (Mechanism.AUTO, "XOAUTH2 NTLM GSSAPI", False, True, None),
        (Mechanism.LOGIN, "PLAIN LOGIN", False, True, Mechanism.LOGIN),
        (Mechanism.CRAM_MD5, "PLAIN LOGIN", False, True, None),
    ],
)
def test_the_best_mechanism_of_those_offered_is_taken(wanted, offered, has_token, is_verified, expected):
    assert expected == chosen(wanted, offered.split(), has_token=has_token, is_verified=is_verified)


async def test_a_secret_is_never_said_before_tls_is_as_it_must_be(secret: Path):
    wrong = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(wrong)
    servers = [AuthServer(), AuthServer(tls=wrong), AuthServer({"STARTTLS": "454 4.7.0 no"}, tls=tls())]
    async with serving(*servers), a_deliverer() as deliverer:
        for server in servers:
            await deferred(deliverer, to(server, Login(user="relay", secret_file=secret)))

    assert [] == [line for server in servers for line in server.lines if line.startswith(("AUTH", "MAIL"))]


async def test_a_session_with_a_login_serves_no_other_route(secret: Path):
    server = AuthServer(tls=tls(), users={"relay": SECRET, "other": SECRET})
    async with serving(server), a_deliverer() as deliverer:
        for user in ("relay", "other", "relay"):
            report = await deliver(deliverer, to(server, Login(user=user, secret_file=secret)))
            assert f"PLAIN {user}" == report.login

    assert 2 == len(server.sessions)


# whose fault it is


async def test_a_refused_login_is_the_routes_fault_and_the_reason_says_so(secret: Path):
    server = AuthServer(tls=tls(), users={"relay": "another"})
    with structlog.testing.capture_logs() as lines:
        async with serving(server), a_deliverer() as deliverer:
            reason = await deferred(deliverer, to(server, Login(user="relay", secret_file=secret)))
            failing = deliverer.failing_logins_count

    assert f"451 4.7.8 The next hop does not accept the login of relay by PLAIN: {REFUSED}" == reason
    assert (1, 1) == (failing, deliverer.counts.logins[LoginResult.REFUSED])
    assert [("login.refused", "refused")] == [(line["event"], line["what"]) for line in lines if line["event"] == "login.refused"]


async def test_many_messages_and_addresses_cost_one_refused_login_until_the_pause_is_over(secret: Path, monkeypatch: pytest.MonkeyPatch):
    server = AuthServer(tls=tls(), users={"relay": "another"})
    destination = Login(user="relay", secret_file=secret)
    async with serving(server), a_deliverer() as deliverer:
        reasons = await asyncio.gather(*(deferred(deliverer, to(server, destination)) for _ in range(12)))
        reasons.append(await deferred(deliverer, to(server, destination)))
        before = len(server.tried)
        monkeypatch.setattr(logins, "PAUSE_SECONDS", 0.0)
        deliverer.reload()
        await deferred(deliverer, to(server, destination))

    assert (1, 2) == (before, len(server.tried))
    assert 1 == len(set(reasons))


async def test_a_secret_that_was_replaced_is_used_at_once(secret: Path):
    server = AuthServer(tls=tls(), users={"relay": "another one"})
    destination = Login(user="relay", secret_file=secret)
    with structlog.testing.capture_logs() as lines:
        async with serving(server), a_deliverer() as deliverer:
            await deferred(deliverer, to(server, destination))
            secret.write_text("another one\n")
            report = await deliver(deliverer, to(server, destination))

    assert ({1: TAKEN}, 0) == (report.replies, deliverer.failing_logins_count)
    assert "login.accepted" in [line["event"] for line in lines]


@pytest.mark.parametrize("said", ["454 4.7.0 Temporary authentication failure", "432 4.3.2 Concurrent connections limit exceeded"])
async def test_a_server_that_throttles_defers_and_nobody_is_locked_out(secret: Path, said: str):
    server = AuthServer(tls=tls(), answers=[said])
    destination = Login(user="relay", secret_file=secret)
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, destination))
        report = await deliver(deliverer, to(server, destination))

    assert said in reason
    assert {1: TAKEN} == report.replies
    assert (1, 0) == (deliverer.counts.logins[LoginResult.DEFERRED], deliverer.failing_logins_count)


async def test_a_session_whose_login_the_server_has_forgotten_is_replaced_and_nothing_is_returned(secret: Path):
    server = AuthServer({"MAIL": ["250 ok", "530 5.7.57 Client not authenticated to send mail", "250 ok"]}, tls=tls())
    destination = Login(user="relay", secret_file=secret)
    async with serving(server), a_deliverer() as deliverer:
        reports = [await deliver(deliverer, to(server, destination)) for _ in range(2)]

    assert [{1: TAKEN}] * 2 == [report.replies for report in reports]
    assert 2 == len(server.sessions)


@pytest.mark.parametrize(
    ("mechanisms", "expected"),
    [("GSSAPI NTLM", "it offers GSSAPI NTLM"), ("", "it offers no AUTH"), ("XOAUTH2", "it offers XOAUTH2")],
)
async def test_without_a_mechanism_in_common_no_secret_is_said(secret: Path, mechanisms: str, expected: str):
    server = AuthServer(tls=tls(), mechanisms=mechanisms)
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, Login(user="relay", secret_file=secret)))

    assert reason.endswith(expected)
    assert [] == server.tried


# hostile servers


CHALLENGES = {
    "no base64": "334 %%%%",
    "empty": "334",
    "not SCRAM": "334 " + base64.b64encode(b"hello").decode(),
    "another nonce": "334 " + base64.b64encode(b"r=xyz,s=c2FsdA==,i=4096").decode(),
    "iterations without end": "334 " + base64.b64encode(b"r=%s,s=c2FsdA==,i=999999999").decode(),
    "accepted without a proof": "235 2.7.0 welcome",
    "out of place": "250 2.0.0 ok",
    "no enhanced code": "535 no",
    "gibberish": "what?",
    "binary": "535 5.7.8 \x01\x02\xff",
    "two lines": "535-5.7.8 Username and Password not accepted.\r\n535 5.7.8 Learn more",
    "closing": "421 4.7.0 Too many login attempts",
}


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "CRAM-MD5", "SCRAM-SHA-256"])
@pytest.mark.parametrize("case", CHALLENGES)
async def test_whatever_a_server_answers_to_a_login_the_mail_waits(secret: Path, mechanism: str, case: str):
    if case == "accepted without a proof" and mechanism == "PLAIN":
        return  # it has no proof of the server's
    server = ScriptedServer({"AUTH": CHALLENGES[case]}, tls=tls(), extensions=(f"AUTH {mechanism}",))
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, Login(user="relay", secret_file=secret)))

    assert reason[0] == "4"
    assert [] == [line for line in server.lines if line.startswith("MAIL")]
    assert reason.isprintable()


async def test_a_server_that_quotes_the_secret_does_not_get_it_into_the_reason(secret: Path):
    plain = base64.b64encode(f"\0relay\0{SECRET}".encode()).decode()
    server = AuthServer(tls=tls(), answers=[f"535 5.7.8 {plain} or {SECRET} or {base64.b64encode(SECRET.encode()).decode()} is wrong"])
    async with serving(server), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, Login(user="relay", secret_file=secret)))

    assert reason.endswith("535 5.7.8 [left out] or [left out] or [left out] is wrong")


async def test_a_server_that_quotes_the_line_with_a_token_does_not_get_it_into_the_reason(secret: Path):
    line = base64.b64encode(b"user=relay@corp.example\x01auth=Bearer token-of-many-characters-1\x01\x01").decode()
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", answers=[f"535 5.7.8 bad: AUTH XOAUTH2 {line[:-9]}"])
    endpoint = TokenEndpoint([(200, {"access_token": "token-of-many-characters-1"})])
    async with serving(server), answering(endpoint), a_deliverer() as deliverer:
        reason = await deferred(deliverer, to(server, with_token(endpoint, secret)))

    assert reason.endswith("535 5.7.8 bad: AUTH XOAUTH2 [left out] (status 401, schemes Bearer)")


# secrets from files


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        (b"x" * 20, 0o644, "others may read or change it (mode 0644); chmod u=rw,g=r,o="),
        (b"x" * 20, 0o660, "its group may change it (mode 0660)"),
        (b"", 0o600, "has no secret in it"),
        (b"\n\n", 0o600, "has no secret in it"),
        (b"two\nlines", 0o600, "has no secret in it"),
        (b"\xff\xfe", 0o600, "has no secret in it"),
        (b"x" * 20_000, 0o600, "has no secret in it"),
    ],
)
def test_a_file_that_is_no_place_for_a_secret_is_refused_and_not_quoted(secret: Path, content: bytes, mode: int, expected: str):
    secret.write_bytes(content)
    secret.chmod(mode)

    with pytest.raises(ConfigurationError) as caught:
        credentials.secret_of(Login(user="relay", secret_file=secret)).read()

    assert f"auth.secret_file: {secret}" in str(caught.value)
    assert expected in str(caught.value)
    assert "xxx" not in str(caught.value)


def test_a_credential_of_systemd_is_a_secret(secret: Path, monkeypatch: pytest.MonkeyPatch):
    login = Login(user="relay", credential="secret")
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    with pytest.raises(ConfigurationError, match="LoadCredential=secret:PATH"):
        credentials.secret_of(login).read()

    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(secret.parent))

    assert SECRET == credentials.secret_of(login).read()


async def test_a_secret_that_is_gone_defers_and_the_reason_names_its_file(secret: Path):
    server = AuthServer(tls=tls())
    async with serving(server), a_deliverer() as deliverer:
        protected = to(server, Login(user="relay", secret_file=secret))
        secret.unlink()
        reason = await deferred(deliverer, protected)

    assert f"451 4.7.0 This node has no secret for its login: auth.secret_file: {secret} cannot be read" in reason
    assert (1, []) == (deliverer.counts.logins[LoginResult.NO_SECRET], server.sessions)


# tokens, as at Microsoft 365 and Google


@pytest.fixture
def life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "PAUSE_SECONDS", 0.0)


def with_token(played: TokenEndpoint, secret: Path, **changes: object) -> Login:
    token = {
        "endpoint": played.url(),
        "client_id": "app-1",
        "client_secret_file": secret,
        "scope": "https://outlook.office365.com/.default",
    }
    return Login(user="relay@corp.example", token=Token.model_validate(token | changes))


async def test_one_token_is_asked_for_and_serves_all_sessions(secret: Path):
    server = AuthServer(tls=tls(), mechanisms="LOGIN XOAUTH2", tokens={"token-1"})
    async with serving(server), answering(TokenEndpoint(seconds=0.05)) as endpoint, a_deliverer() as deliverer:
        login = with_token(endpoint, secret)
        reports = await asyncio.gather(*(deliver(deliverer, to(server, login)) for _ in range(8)))

    assert {"XOAUTH2 relay@corp.example"} == {report.login for report in reports}
    scope = "https://outlook.office365.com/.default"
    expected = {"grant_type": "client_credentials", "client_id": "app-1", "client_secret": SECRET, "scope": scope}
    assert [expected] == endpoint.forms
    assert {("XOAUTH2", "token-1")} == set(server.tried)


async def test_oauthbearer_is_said_where_a_server_has_only_that(secret: Path):
    server = AuthServer(tls=tls(), mechanisms="PLAIN OAUTHBEARER", tokens={"token-1"})
    async with serving(server), answering(TokenEndpoint()) as endpoint, a_deliverer() as deliverer:
        report = await deliver(deliverer, to(server, with_token(endpoint, secret)))

    assert "OAUTHBEARER relay@corp.example" == report.login


async def test_a_token_is_renewed_before_it_ends_and_once_for_all_sessions(secret: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "RENEWED_SHARE", 0.0005)  # after 0.3 s of ten minutes, and 43 s of a day
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", tokens={"token-1", "token-2"})
    endpoint = TokenEndpoint([(200, {"access_token": "token-%d", "expires_in": seconds}) for seconds in (600, 86_400)])
    async with serving(server), answering(endpoint), a_deliverer(unused_seconds=0.01) as deliverer:
        login = with_token(endpoint, secret)
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + PATIENCE_SECONDS
        while ("XOAUTH2", "token-2") not in server.tried and loop.time() < ends_at:
            await asyncio.gather(*(deliver(deliverer, to(server, login)) for _ in range(3)))
            await asyncio.sleep(0.05)

    assert 2 == len(endpoint.forms)
    assert {"token-1", "token-2"} == {token for _, token in server.tried}


async def test_a_token_that_was_revoked_is_replaced_in_the_same_session(secret: Path):
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", tokens={"token-1"})
    async with serving(server), answering(TokenEndpoint()) as endpoint, a_deliverer(unused_seconds=0.01) as deliverer:
        login = with_token(endpoint, secret)
        await deliver(deliverer, to(server, login))
        server.tokens = {"token-2"}
        for session in server.sessions:
            session.writer.transport.abort()
        report = await deliver(deliverer, to(server, login))

    assert {1: TAKEN} == report.replies
    assert ["token-1", "token-1", "token-2"] == [token for _, token in server.tried]


async def test_what_the_server_says_of_a_refused_token_is_in_the_reason(secret: Path):
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", tokens=set())
    async with serving(server), answering(TokenEndpoint()) as endpoint, a_deliverer() as deliverer:
        login = with_token(endpoint, secret)
        reasons = [await deferred(deliverer, to(server, login)) for _ in range(2)]

    assert "by XOAUTH2: 535 5.7.8 Error: authentication failed (status 401, schemes Bearer)" in reasons[0]
    assert reasons[0] == reasons[1]
    assert 1 == len(server.tried)  # then nobody tries for a while
    assert 1 == deliverer.failing_logins_count


@pytest.mark.parametrize(
    ("status", "said", "expected"),
    [
        (
            400,
            {"error": "invalid_grant", "error_description": "AADSTS50173: The grant was revoked"},
            "400 invalid_grant AADSTS50173: The grant",
        ),
        (
            401,
            {"error": "invalid_client", "error_description": f"secret {SECRET} is wrong"},
            "invalid_client secret [left out] is",
        ),
        (429, {"error": "slow_down"}, "answers 429 slow_down"),
        (503, "<html>out of order</html>", "answers 503"),
        (302, "", "answers 302"),
        (200, "", "has no access_token"),
        (200, "[1, 2]", "has no access_token"),
        (200, '{"access_token": 5}', "has no access_token"),
        (200, {"access_token": ""}, "has no access_token"),
        (200, {"access_token": "a b"}, "the access_token in the answer is none"),
        (200, {"access_token": "a\r\nMAIL"}, "the access_token in the answer is none"),
        (200, {"access_token": "ä"}, "the access_token in the answer is none"),
        (200, {"access_token": "x" * 20_000}, "the access_token in the answer is none"),
        (200, {"access_token": "x", "token_type": "mac"}, "not of type bearer"),
        (200, {"access_token": "x", "token_type": 7}, "not of type bearer"),
        (200, {"access_token": "x", "expires_in": 0}, "ended before it was given"),
        (200, {"access_token": "x", "expires_in": -5}, "ended before it was given"),
        (200, {"access_token": "x", "expires_in": [1]}, "ended before it was given"),
        (200, '{"access_token": "x", "expires_in": NaN}', "ended before it was given"),
        (200, "[" * 60_000, "has no access_token"),
        (200, "x" * 100_000, "is too long"),
    ],
)
async def test_whatever_an_endpoint_answers_the_mail_waits_and_the_reason_says_why(secret: Path, status: int, said: object, expected: str):
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2")
    async with serving(server), answering(TokenEndpoint([(status, said)])) as endpoint, a_deliverer() as deliverer:
        login = with_token(endpoint, secret)
        reasons = [await deferred(deliverer, to(server, login)) for _ in range(3)]

    assert expected in reasons[0]
    assert reasons[0].startswith("451 4.7.0 No access token for the login of relay@corp.example: ")
    assert SECRET not in "".join(reasons)
    assert (1, []) == (len(endpoint.forms), server.sessions)  # after a failure nobody asks for a while
    assert 3 == deliverer.counts.logins[LoginResult.NO_TOKEN]


async def test_an_answer_that_comes_packed_is_not_unpacked(secret: Path):
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", tokens={"right"})
    packed = gzip.compress(json.dumps({"access_token": "right", "filling": "x" * 40_000_000}).encode())
    assert len(packed) < 64 * 1024
    async with (
        serving(server),
        answering(TokenEndpoint([(200, packed)], headers={"Content-Encoding": "gzip"})) as endpoint,
        a_deliverer() as deliverer,
    ):
        reason = await deferred(deliverer, to(server, with_token(endpoint, secret)))

    assert "has no access_token" in reason
    assert [] == server.sessions


async def test_an_endpoint_that_says_when_to_come_again_is_left_alone_until_then(secret: Path, life: None):
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", tokens={"token-2", "token-3"})
    throttling = TokenEndpoint([(429, {"error": "slow_down"}), (200, {"access_token": "token-%d"})], headers={"Retry-After": "300"})
    async with serving(server), answering(throttling), a_deliverer() as deliverer:
        login = with_token(throttling, secret)
        for _ in range(3):
            await deferred(deliverer, to(server, login))

    assert 1 == len(throttling.forms)


async def test_an_endpoint_that_never_answers_costs_its_own_mail_only(secret: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokens, "ASKING_SECONDS", 0.3)
    hanging, other = AuthServer(tls=tls(), mechanisms="XOAUTH2"), AuthServer(tls=tls())
    async with serving(hanging, other), answering(TokenEndpoint(seconds=60)) as endpoint, a_deliverer() as deliverer:
        waits = asyncio.create_task(deferred(deliverer, to(hanging, with_token(endpoint, secret))))
        report = await deliver(deliverer, to(other, Login(user="relay", secret_file=secret)))
        is_waiting = not waits.done()
        reason = await waits

    assert ({1: TAKEN}, True) == (report.replies, is_waiting)
    assert "did not answer in 0 s" in reason


async def test_an_endpoint_must_show_a_certificate_that_counts(secret: Path):
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", tokens={"token-1"})
    async with serving(server), answering(TokenEndpoint(), tls()) as endpoint, a_deliverer() as deliverer:
        https = {"endpoint": endpoint.url("https")}
        reason = await deferred(deliverer, to(server, with_token(endpoint, secret, **https)))
        report = await deliver(deliverer, to(server, with_token(endpoint, secret, **https, authority=secret.parent / "authority.pem")))

    assert "cannot be asked: certificate verify failed: unable to get local issuer certificate" in reason
    assert {1: TAKEN} == report.replies


async def test_a_client_may_say_its_secret_in_a_header(secret: Path):
    server = AuthServer(tls=tls(), mechanisms="XOAUTH2", tokens={"token-1"})
    async with serving(server), answering(TokenEndpoint()) as endpoint, a_deliverer() as deliverer:
        await deliver(deliverer, to(server, with_token(endpoint, secret, client_authentication="basic")))

    assert ["Basic " + base64.b64encode(f"app-1:{SECRET}".encode()).decode()] == endpoint.authorizations
    assert "client_secret" not in endpoint.forms[0]


async def test_a_refresh_token_that_is_replaced_is_kept_for_the_next_start_until_it_is_refused(secret: Path, tmp_path: Path, life: None):
    answers = [
        (200, {"access_token": "token-%d", "expires_in": 3600, "refresh_token": "second-refresh"}),
        (200, {"access_token": "token-%d", "expires_in": 3600}),
        (400, {"error": "invalid_grant"}),
        (200, {"access_token": "token-%d"}),
    ]
    async with answering(TokenEndpoint(answers)) as endpoint:
        token = {"endpoint": endpoint.url(), "client_id": "app-1", "grant": Grant.REFRESH_TOKEN, "refresh_token_file": secret}
        login = Login(user="relay@corp.example", token=Token.model_validate(token))
        for number, is_got in enumerate([True, True, False, True]):
            source = tokens.TokenSource(login, SmtpCounts(), tmp_path)  # as after a start
            if is_got:
                assert f"token-{number + 1}" == await source.get()
            else:
                with pytest.raises(tokens.NoToken, match="invalid_grant"):
                    await source.get()

    assert [SECRET, "second-refresh", "second-refresh", SECRET] == [form["refresh_token"] for form in endpoint.forms]
    assert [0o700] == [path.stat().st_mode & 0o777 for path in tmp_path.glob("tokens")]


def SmtpCounts():
    from shadowrelay.model.counts import SessionCounts

    return SessionCounts()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("echo token-1", "token-1"),
        ("""echo '{"access_token": "token-1", "expires_in": "3599"}'""", "token-1"),
        ("exit 3", "ended with status 3"),
        ("echo", "has no access_token"),
        ("echo two words", "the access_token in the answer is none"),
        ("yes", "the access_token in the answer is none"),
        ("sleep 60", "did not end"),
    ],
)
async def test_a_command_prints_a_token_or_the_mail_waits(monkeypatch: pytest.MonkeyPatch, script: str, expected: str):
    monkeypatch.setattr(tokens, "COMMAND_SECONDS", 0.5 if "sleep" in script else 20.0)
    source = tokens.TokenSource(Login(user="relay", token=Token(command=("/bin/sh", "-c", script))), SmtpCounts(), None)
    try:
        got = await source.get()
    except tokens.NoToken as error:
        got = str(error.reply)

    assert expected in got


async def test_a_command_that_is_not_there_is_named():
    source = tokens.TokenSource(Login(user="relay", token=Token(command=("/no/such/program",))), SmtpCounts(), None)

    with pytest.raises(tokens.NoToken, match="/no/such/program cannot be started: No such file"):
        await source.get()


@pytest.mark.parametrize("which", ["secret", "authority.pem"])
async def test_a_route_whose_files_hang_waits_and_takes_no_thread_of_the_others(
    secret: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """A file of a file system that does not answer: as many deliveries as the loop's executor has threads would stop all large mail."""
    monkeypatch.setattr(bounded, "READ_SECONDS", 0.2)
    (secret.parent / which).unlink()
    os.mkfifo(secret.parent / which, 0o600)  # opening it does not return
    server = AuthServer(tls=tls(), mechanisms="PLAIN")
    async with serving(server), a_deliverer() as deliverer:
        reasons = await asyncio.gather(*(deferred(deliverer, to(server, Login(user="relay", secret_file=secret))) for _ in range(12)))
        other = await asyncio.wait_for(asyncio.to_thread(lambda: "done"), PATIENCE_SECONDS)
        hung = [files for files in bounded.FILES.hung() if secret.parent / which in files]
        well = secret.parent / "well"
        well.write_text(SECRET)
        well.chmod(0o600)
        beside = Protection(TlsMode.REQUIRED, login=Login(user="relay", secret_file=well))
        report = await deliver(deliverer, Destination("beside", (HostPort("localhost", server.port),), protection=beside))

    assert "done" == other
    assert all(f"{secret.parent / which} hangs" in reason for reason in reasons)
    assert 1 == len(hung)
    assert {1: TAKEN} == report.replies
