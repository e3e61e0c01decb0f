"""What every service works with, put together once by the node."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from shadowrelay.core.ownership.values import Party
from shadowrelay.model.ids import ServerName
from shadowrelay.model.settings import Settings
from shadowrelay.ports import Clock, Ledger, Metrics, PeerLink, TrackingLog
from shadowrelay.service.attempts import Attempts
from shadowrelay.service.leases import Leases
from shadowrelay.service.peerbook import PeerBook
from shadowrelay.service.tasks import Tasks


@dataclass(slots=True)
class Context:
    """The node's parts. `settings` is replaced as a whole when the configuration is reloaded."""

    settings: Settings
    me: Party
    clock: Clock
    ledger: Ledger
    links: Mapping[ServerName, PeerLink]
    tracking: TrackingLog
    metrics: Metrics
    leases: Leases
    attempts: Attempts
    peers: PeerBook
    tasks: Tasks
    is_draining: bool = field(default=False)

    def now(self) -> datetime:
        return self.clock.now()

    @property
    def is_enabled(self) -> bool:
        return self.settings.transport.shadow_redundancy_enabled

    @property
    def heartbeat(self) -> float:
        """shadow_heartbeat_frequency in seconds."""
        return self.settings.transport.shadow_heartbeat_frequency.total_seconds()
