"""Finds secrets in what a test's nodes and commands have said. Every test that starts some has it: tests/conftest.py.

Secrets are what stands in files for secrets below the test's directory, what a configuration there says in the place of one, and what the
played servers of `tests/kit` took for passwords and tokens. Said is what stands in logs (operator's, tracking), what the test captured
(with tracebacks), and what was answered to any request by httpx: API and metrics.
"""

import base64
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

FILES = re.compile(r"(token|read_only_token|.*secret.*|refresh.*|.*\.key)")
LOGS = frozenset({".log", ".LOG"})
IN_CONFIGURATION = re.compile(r'(?m)\b(?:secret|token|password)\s*=\s*"([^"\n]+)"')
CHARACTERS_MIN = 12  # shorter ones are words
FILES_MAX, OCTETS_MAX = 5_000, 50_000_000

noted: set[str] = set()
heard: list[str] = []


def note(*secrets: str) -> None:
    """Secrets of played servers, in whichever test. One of a single character, many times, is about its length, and stands elsewhere."""
    noted.update(each for each in secrets if len(each) >= CHARACTERS_MIN and len(set(each)) > 1)


def forms_of(secret: str) -> Iterator[str]:
    """As it may be said or quoted: base64 has three forms of what stands within something longer."""
    yield secret
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + secret.encode()).decode().rstrip("=")
        yield encoded[(0, 2, 3)[shift] : -1]


def below(directory: Path) -> tuple[set[str], list[str]]:
    """The secrets in its files, and what stands in its logs."""
    secrets, said, seen = set[str](), list[str](), 0
    for path in directory.rglob("*"):
        if (seen := seen + 1) > FILES_MAX:
            break
        try:
            if path.is_symlink() or not path.is_file() or path.stat().st_size > OCTETS_MAX:
                continue
            if path.suffix in LOGS:
                said.append(path.read_text(errors="replace"))
            elif FILES.fullmatch(path.name):
                secrets |= _in_file(path.read_text(errors="replace"))
            elif path.suffix == ".toml":
                secrets |= set(IN_CONFIGURATION.findall(path.read_text(errors="replace")))
        except OSError:
            continue
    return {each for each in secrets if len(each) >= CHARACTERS_MIN}, said


def _in_file(text: str) -> set[str]:
    """A secret a line; of a private key, the lines of its octets."""
    return {line.strip() for line in text.splitlines() if not line.startswith("-----")}


def shown(secrets: Iterable[str], said: Iterable[str]) -> list[str]:
    """Which of them stand there, with what is before them."""
    everything = "\n".join(said)
    found = {(secret, form): everything.find(form) for secret in sorted(secrets) for form in forms_of(secret)}
    return [f"{secret!r}: …{everything[max(0, at - 80) : at + len(form)]}" for (secret, form), at in found.items() if at >= 0]


def listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is answered to httpx is heard, if it was read at once."""
    heard.clear()

    def note_answer(answer: httpx.Response) -> httpx.Response:
        if answer.is_closed and answer.is_stream_consumed and "event-stream" not in answer.headers.get("content-type", ""):
            heard.append(f"{answer.headers}\n{answer.text}")
        return answer

    at_once, later = httpx.Client.send, httpx.AsyncClient.send

    def send(client: httpx.Client, *words: Any, **named: Any) -> httpx.Response:
        return note_answer(at_once(client, *words, **named))

    async def send_later(client: httpx.AsyncClient, *words: Any, **named: Any) -> httpx.Response:
        return note_answer(await later(client, *words, **named))

    monkeypatch.setattr(httpx.Client, "send", send)
    monkeypatch.setattr(httpx.AsyncClient, "send", send_later)
