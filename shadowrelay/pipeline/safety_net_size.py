"""Keeps Safety Net within its size, and gives its room to new mail when the disk gets full. docs/design.md 6.3.

What was delivered is kept for a rare need; new mail is not refused for its sake. What is dropped can no longer be resubmitted, and
`context.safety_net_complete_since` says from when on everything can.
"""

import asyncio

import structlog

from shadowrelay.model.replies import LedgerUnavailable
from shadowrelay.model.setting_texts import size_of
from shadowrelay.pipeline.context import Context
from shadowrelay.ports import Disk, Machine
from shadowrelay.rules import back_pressure, safety_net_rules
from shadowrelay.store import shedding, steps

LOOK_SECONDS = 5.0

_log = structlog.get_logger()


class SafetyNetSize:
    """Looks every few seconds, and when mail would be refused for lack of space."""

    def __init__(self, context: Context, machine: Machine | None) -> None:
        self._context = context
        self._machine = machine
        self._looking = asyncio.Lock()

    async def run(self) -> None:
        """Look forever."""
        while True:
            try:
                await self.look()
            except LedgerUnavailable as error:
                _log.warning("shedding.waits", reason=error.reason)
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Drop what is too much now. Raises: LedgerUnavailable."""
        async with self._looking:  # two would both drop what one of them finds too much
            await self._look()

    async def _look(self) -> None:
        context = self._context
        ledger, limit = context.ledger, context.settings.transport.safety_net_max_size
        disk = self._disk()
        size_max = None if disk is None and limit.endswith("%") else size_of(limit, 0 if disk is None else disk.size)
        if disk is not None or size_max is not None:
            used = await ledger.read(shedding.safety_net_octets)
            octets = safety_net_rules.excess(used, size_max, *self._free(disk))
            if octets:
                count, dropped = await steps.shed_safety_net(ledger, octets)
                if count:
                    _log.warning("shedding.done", messages=count, octets=dropped, left=used - dropped, limit=limit)
        since = await ledger.read(shedding.complete_since)
        held_since = context.now() - context.settings.transport.safety_net_hold_time
        context.safety_net_complete_since = since if since is not None and since > held_since else None

    def _disk(self) -> Disk | None:
        if self._machine is None:
            return None
        try:
            return self._machine.disk(self._context.settings.server.data_directory)
        except OSError:
            return None

    def _free(self, disk: Disk | None) -> tuple[int, int]:
        """What is free, and what should be, so that no mail is refused."""
        settings = self._context.settings.back_pressure
        if disk is None or not settings.enable_resource_monitoring:
            return 0, 0
        percent = settings.database_used_space.medium_to_low
        return disk.free, back_pressure.free_below(percent, disk.size, settings.free_disk_space_min, settings.disk_size_max)
