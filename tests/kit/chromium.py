"""Debian's chromium without a screen, spoken to in its own protocol over two pipes: no port, no driver, no library.

The sandbox is off when we are root, as chromium demands; the pages are our own and may fetch nothing.
"""

import json
import os
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from time import monotonic
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-headless-shell")
MISSING = "needs Debian's chromium: apt-get install chromium"
_ANSWER_SECONDS = 60.0
_FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--disable-sync", "--mute-audio"),
)


class Browser:
    """One tab. Shapes: `events` are what the browser said without being asked, in order."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing = reading, writing
        self._unread, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result. Raises: AssertionError with the browser's words if it failed, TimeoutError if it is silent."""
        self._number += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._number, "method": method, "params": parameters} | session
        os.write(self._writing, json.dumps(command).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, f"{method}: {answer.get('error')}"
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        until = monotonic() + _ANSWER_SECONDS
        while b"\0" not in self._unread:
            if not select([self._reading], [], [], max(0.0, until - monotonic()))[0]:
                raise TimeoutError("chromium does not answer")
            received = os.read(self._reading, 1 << 20)
            assert received, "chromium ended"
            self._unread += received
        text, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def wait_for(self, method: str) -> None:
        """Until the browser has said so since the last look."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def show(self, *, width: int = 1280, height: int = 900, scheme: str = "light", scale: float = 1) -> None:
        """The window, and which colours its owner prefers."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, page: Path) -> None:
        """Load a file and wait until it is there."""
        self.events.clear()
        self.ask("Page.navigate", url=page.as_uri())
        self.wait_for("Page.loadEventFired")

    def value(self, script: str) -> Any:
        """What an expression gives in the page, as JSON."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def complaints(self) -> list[str]:
        """Console errors, uncaught exceptions and refusals of the security policy since the page was opened."""
        self.value("0")  # what was said before this answer has arrived
        found = []
        for event in self.events:
            match event.get("method"), event.get("params", {}):
                case "Log.entryAdded", {"entry": entry}:
                    found.append(f"{entry['level']}: {entry['text']}")
                case "Runtime.consoleAPICalled", parameters:
                    found.append(f"{parameters['type']}: {parameters['args']}")
                case "Runtime.exceptionThrown", {"exceptionDetails": details}:
                    found.append(str(details))
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        return [event["params"]["request"]["url"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]

    def picture(self, *, is_whole: bool = True) -> bytes:
        """PNG."""
        return b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=is_whole)["data"])

    def printed(self) -> bytes:
        """PDF, A4."""
        return b64decode(self.ask("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, preferCSSPageSize=True)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own, ended afterwards."""
    assert PROGRAM
    from_us, to_browser = os.pipe()
    from_browser, to_us = os.pipe()
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
    # chromium reads commands from 3 and writes answers to 4; bash puts the pipes there
    script = f'exec "$@" 3<&{from_us} 4>&{to_us}'
    command = ["/bin/bash", "-c", script, "bash", PROGRAM, *_FLAGS, *sandbox, f"--user-data-dir={profile}"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, pass_fds=(from_us, to_us), stdin=quiet, stdout=quiet, stderr=quiet)
    os.close(from_us)
    os.close(to_us)
    try:
        tab = Browser(from_browser, to_browser)
        yield tab
        tab._session = ""
        tab.ask("Browser.close")
        process.wait(_ANSWER_SECONDS)
    finally:
        process.kill()
        process.wait()
        os.close(to_browser)
        os.close(from_browser)
