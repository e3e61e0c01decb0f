"""A server in the place of a node's API that says in every text what would control the terminal of whoever asks it."""

import json
import types
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from pydantic import BaseModel

from shadowrelay.admin import mail_resources, node_resources, resources

# A title, the clipboard (OSC 52), colours, C1, DEL, bell, backspace, marks that turn text round, a tag of plane 14, a forged line
HOSTILE = "\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x1b\\\x1b[31mred\x9b2J\x90q\x9c\x7f\b"
HOSTILE += "\u202etxt\u2066x\u2028y\u200e\U000e0041\r\nshadowrelay: forged"
RAW = frozenset(HOSTILE) - frozenset(map(chr, range(32, 127))) - {"\r", "\n"}
WHEN = "2026-11-22T10:00:00Z"
ID = "0193a6a2-6f1e-7c3a-9c57-0d1f2e3a4b5c"
PAGES: dict[str, type[BaseModel]] = {
    "/node": node_resources.NodeResource,
    "/drain": node_resources.Drain,
    "/undrain": node_resources.Drain,
    "/queues/redirect": node_resources.Drain,
    "/queues": mail_resources.Queues,
    "/queues/retry": mail_resources.QueueRetried,
    "/queues/suspend": mail_resources.QueueSuspended,
    "/queues/resume": mail_resources.QueueSuspended,
    "/search": mail_resources.Messages,
    "/messages": mail_resources.Messages,
    "/events": mail_resources.Events,
    "/message": mail_resources.Message,
    "/suspend": mail_resources.MessageSuspended,
    "/resume": mail_resources.MessageSuspended,
    "/release": mail_resources.Released,
    "/remove": mail_resources.Removed,
    "/resubmit": mail_resources.ResubmittedResource,
    "/safety-net/requests": resources.ResubmitRequests,
    "/safety-net/request": resources.ResubmitRequestResource,
    "/pressure": node_resources.BackPressureResource,
    "/peers": node_resources.Peers,
    "/forget": node_resources.Forgotten,
    "/redundancy": node_resources.Copies,
    "/glance": node_resources.Glance,
    "/if-lost": node_resources.WhatIfResource,
    "/audit": resources.Audit,
    "/clients": node_resources.Clients,
    "/ready": node_resources.Readiness,
}


def filled(kind: Any, name: str = "", text: str = HOSTILE) -> Any:
    """A value of that annotation whose texts are hostile, except times and ids, without which no command gets to its output."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {key: filled(field.annotation, key, text) for key, field in kind.model_fields.items()}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (list, tuple):
        return [filled(arguments[0], name, text)]
    if origin is dict:
        return {text: filled(arguments[1], name, text)}
    if origin in (typing.Union, types.UnionType):
        return filled(arguments[0], name, text)
    if origin is typing.Literal:
        return text
    if origin is typing.Annotated:
        return filled(arguments[0], name, text)
    if kind is bool:
        return False
    if kind in (int, float):
        return 1
    if kind is datetime or name == "at" or name.endswith(("_at", "_since", "since")):
        return WHEN
    if name == "next_after":
        return None
    return ID if name == "message_id" else text


def page_of(path: str) -> type[BaseModel]:
    """The resource that is asked for."""
    path = path.split("?")[0].removeprefix("/api/v1").removeprefix("/health")
    if path in PAGES:
        return PAGES[path]
    if path.startswith("/safety-net"):
        return PAGES["/safety-net/request"]
    return PAGES.get("/" + path.rsplit("/", 1)[1], PAGES["/message"])


class HostileHandler(BaseHTTPRequestHandler):
    """Answers each request hostilely: with `status` 200 a resource, else a problem; with 0 something that is no JSON."""

    status = 200
    text = HOSTILE

    def do_GET(self) -> None:
        """Any request."""
        if self.path.split("?")[0].endswith("/content"):
            self._send(200, "message/rfc822", f"Subject: {self.text}\r\n\r\n{self.text}\r\n".encode())
        elif self.status == 200:
            document = filled(page_of(self.path), text=self.text)
            if "next_after" in document:
                document["next_after"] = None
            self._send(200, "application/json", json.dumps(document).encode())
        elif self.status == 0:
            self._send(500, "text/plain", self.text.encode())
        else:
            self._send(self.status, "application/problem+json", json.dumps({"detail": self.text}).encode())

    do_POST = do_GET

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def hostile_node(status: int = 200, text: str = HOSTILE) -> Iterator[str]:
    """Its URL."""
    handler = type("Handler", (HostileHandler,), {"status": status, "text": text})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
