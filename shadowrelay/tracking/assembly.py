"""The message tracking log and its shipper, put together from the settings."""

from collections.abc import Callable
from datetime import datetime

from shadowrelay.model.settings import Settings
from shadowrelay.model.shipping import shown_target, without_secrets
from shadowrelay.tracking.book import Book
from shadowrelay.tracking.manifest import Origin
from shadowrelay.tracking.shipper import Shipper
from shadowrelay.tracking.target import open_target
from shadowrelay.tracking.writer import FileTrackingLog


def make_tracking(settings: Settings, now: Callable[[], datetime], version: str) -> tuple[FileTrackingLog, Shipper | None]:
    """The log, and who ships its files if there is a target. Connects to nothing. Raises: ConfigurationError."""
    shipper = _make_shipper(settings, now)  # before the log begins a file: those that are there are complete
    tracking = settings.tracking
    log = FileTrackingLog(
        tracking.directory,
        settings.server.name,
        max_file_size=tracking.max_file_size,
        max_directory_size=tracking.max_directory_size,
        max_age=tracking.max_age,
        now=now,
        version=version,
        on_closed=shipper.closed if shipper is not None else None,
        close_after=settings.shipping.interval if shipper is not None else None,
        custody=shipper.files if shipper is not None else None,
    )
    return log, shipper


def _make_shipper(settings: Settings, now: Callable[[], datetime]) -> Shipper | None:
    server, shipping, tracking = settings.server, settings.shipping, settings.tracking
    if not shipping.target:
        return None
    target = open_target(shipping.target, shipping.options, server.name)
    origin = Origin(server.name, server.site, server.boundary)
    return Shipper(
        tracking.directory,
        Book(tracking.directory, shipping.target, origin, max_age=tracking.max_age, now=now),
        target,
        now,
        plain=lambda text: without_secrets(text, shipping.target, shipping.options),
        shown=shown_target(shipping.target),
    )
