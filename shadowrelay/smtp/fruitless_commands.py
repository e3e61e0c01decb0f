"""Commands that lead to no mail, counted since a session's last accepted message: slowed, then ended. docs/security.md "Strangers".

Counts and decides; the session obeys (`Connection.keep_pace`). A group that was sent at once may have many commands that find no
transaction, and a list many old addresses, whose mail must get through: these count in part, or are only slowed.
"""

from enum import Enum

from shadowrelay.model.values import dataclass
from shadowrelay.smtp.limits import HOLD_RECIPIENTS_MAX

SLOW, ENDED = 100, 200  # slowed, ended. Postfix's smtpd_junk_command_limit: 100
TRUSTED_FACTOR, PEER_FACTOR = 10, 100  # a peer's sessions stay open, and it polls once in a second
DELAY_SECONDS = 0.25  # 20 sessions make 80 commands in a second
IN_PART = 10  # so many misplaced commands, or recipients of a transaction that came to nothing, count as a command
SLOWED_TOGETHER = 20  # refused recipients of one message, small chunks of one content: 80 of them in a second
SMALL_CHUNK_OCTETS, SMALL_CHUNKS_MAX = 512, 1_000  # so many chunks that are smaller come as fast as they can


class Pace(Enum):
    """How the session goes on."""

    AT_ONCE = "at once"
    SLOWLY = "slowly"  # after `DELAY_SECONDS`
    NOT_AT_ALL = "not at all"


@dataclass(slots=True)
class FruitlessCommands:
    """Of one session. `patience`: how many times what a stranger may do its client may."""

    count: int = 0
    misplaced_count: int = 0

    def led_nowhere(self) -> bool:
        """One more command leads to no mail: whether its session may have to wait."""
        self.count += 1
        return self.count > SLOW

    def is_misplaced_one_too_many(self) -> bool:
        """A command found no transaction, or no recipient: whether it counts."""
        self.misplaced_count += 1
        return self.misplaced_count % IN_PART == 0

    def abandon(self, recipients_count: int) -> None:
        """A transaction with so many recipients came to nothing."""
        self.count += recipients_count // IN_PART

    def pace(self, patience: int) -> Pace:
        """After what was counted until now."""
        if self.count <= SLOW * patience:
            return Pace.AT_ONCE
        return Pace.SLOWLY if self.count <= ENDED * patience else Pace.NOT_AT_ALL

    def refuse_recipient(self, refused_count: int, patience: int, *, is_one_too_many: bool) -> Pace:
        """A recipient was refused, with which so many of its message are: those above a limit are no fault, unless they do not end."""
        is_endless = refused_count > HOLD_RECIPIENTS_MAX  # more than any message has
        self.count += is_endless or not is_one_too_many
        if is_endless:
            return self.pace(patience)
        is_slowed = refused_count > SLOW * patience and not is_one_too_many and refused_count % SLOWED_TOGETHER == 0
        return Pace.SLOWLY if is_slowed else Pace.AT_ONCE


def pace_of_small_chunks(count: int) -> Pace:
    """Content may come octet by octet, and then takes its time: this is the chunk of that number."""
    return Pace.SLOWLY if count > SMALL_CHUNKS_MAX and count % SLOWED_TOGETHER == 0 else Pace.AT_ONCE
