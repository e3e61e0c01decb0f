"""The schema of `queue.db`. `versions.py` has its version and the upgrades from older ones. docs/architecture.md "On disk".

A message has one row for its whole life: claim, bookkeeping, envelope, place of its content. The column `copies` is authoritative for a
primary's list; `listing` is only its index by server. Counters that assign ids are in the one row of `database`, raised in the transaction
that uses them, so that no id is assigned twice. `counter` has the size of each queue: see `counters.py`.

A change of the schema here also needs a revision in `migrations/versions` that changes an older database likewise, and a higher
`versions.VERSION`.
"""

from sqlalchemy import BLOB, Column, Index, Integer, MetaData, Table, Text, and_

from shadowrelay.store.dialect import constant

METADATA = MetaData()

DATABASE = Table(
    "database",
    METADATA,
    Column("id", Integer, primary_key=True),  # always 1
    Column("database", Text, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("began", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("internal_id", Integer, nullable=False),  # the last one given
    Column("sequence", Integer, nullable=False),  # the last one given
    Column("former", Text, nullable=False, server_default=""),  # the id before this file was found to be an older copy
    Column("older_until", Integer, nullable=False, server_default="0"),  # up to this internal id there may be claims of the older copy
    Column("draining_since", Integer),  # set by `drain`, until `undrain`
)

OPENING = Table(  # `Beginning` of each incarnation of this database
    "opening",
    METADATA,
    Column("incarnation", Integer, primary_key=True),
    Column("began", Integer, nullable=False),
    Column("found", Integer, nullable=False),
)

MESSAGE = Table(
    "message",
    METADATA,
    Column("internal_id", Integer, primary_key=True),
    Column("message_id", Text, nullable=False, unique=True),
    Column("origin", Text, nullable=False),
    Column("arrived_at", Integer, nullable=False),
    Column("envelope", Text, nullable=False),
    Column("recipients_count", Integer, nullable=False),
    # the columns from here on change; `rows.CHANGING` has them in this order
    Column("role", Text, nullable=False),
    Column("ownership", Integer, nullable=False),
    Column("placement", Integer, nullable=False),
    Column("number_database", Text, nullable=False),
    Column("done", Text, nullable=False),
    Column("primary_server", Text, nullable=False),
    Column("primary_database", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("handed", Integer, nullable=False),
    Column("copies", Text, nullable=False),
    Column("is_placed", Integer, nullable=False),  # as many copies are chosen or handed over as are wanted
    Column("due_at", Integer),
    Column("keep_until", Integer, nullable=False),
    Column("remember_until", Integer, nullable=False),
    Column("expires_at", Integer),  # the next step of `expire`
    Column("is_decided", Integer, nullable=False),
    Column("is_promoted", Integer, nullable=False),
    Column("promoted_from", Text, nullable=False),
    Column("is_shadow_side", Integer, nullable=False),  # was a shadow message before it was delivered
    Column("is_awaited", Integer, nullable=False),  # a generated message that notifications wait for
    Column("deaths_count", Integer, nullable=False),
    Column("set_aside_reason", Text, nullable=False),
    Column("retries_count", Integer, nullable=False),
    Column("segment", Integer),  # 0: a large file, `offset` is its number
    Column("offset", Integer),
    Column("size", Integer),
    Column("sha256", BLOB),
    Column("suspended_at", Integer),  # an administrator lets nobody attempt it since then
    Column("suspended_by", Text, nullable=False, server_default=""),
    Column("delivered_at", Integer),  # the last delivery of this node; if another server delivered it: when that was reported
    Column("deliveries", Text, nullable=False, server_default=""),  # see `rows.encode_delivery`
    Column("forks_count", Integer, nullable=False, server_default="0"),  # rows of `shadow_fork`
    Column("copies_wanted", Integer, nullable=False, server_default="1"),
    Column("is_kept", Integer, nullable=False, server_default="0"),  # relayed by TRACK, and kept as the shadow
)
# Each index is partial, so that a message costs only the entries of the state that it is in.
_C = MESSAGE.c
_IS_PRIMARY = _C.role == constant("primary")
_IS_SHADOW = _C.role == constant("shadow")
_IS_DECIDED = _C.is_decided == constant(1)
SUBMISSION = Index(  # what has no row in `retry`
    "message_submission", _C.role, _C.internal_id, sqlite_where=and_(_IS_PRIMARY, _C.retries_count == constant(0), _IS_DECIDED)
)
UNDECIDED = Index("message_undecided", _C.role, sqlite_where=and_(_IS_PRIMARY, _C.is_decided == constant(0)))
UNPLACED = Index("message_unplaced", _C.role, _C.is_placed, sqlite_where=and_(_IS_PRIMARY, _C.is_placed == constant(0), _IS_DECIDED))
SHADOWS = Index("message_shadow", _C.role, _C.primary_server, _C.primary_database, _C.internal_id, sqlite_where=_IS_SHADOW)
WITHOUT_FORKS = Index(  # what is in no shadow queue by next hop, found without a look at what is
    "message_without_forks",
    _C.role,
    _C.primary_server,
    _C.primary_database,
    _C.internal_id,
    sqlite_where=and_(_IS_SHADOW, _C.forks_count == constant(0)),
)
HANDED = Index(
    "message_handed",
    _C.handed,
    _C.role,
    _C.primary_server,
    _C.primary_database,
    sqlite_where=and_(_IS_SHADOW, _C.handed == constant(1)),
)
KEPT = Index(  # what was relayed by TRACK
    "message_kept",
    _C.role,
    _C.primary_server,
    _C.primary_database,
    _C.internal_id,
    sqlite_where=and_(_IS_SHADOW, _C.is_kept == constant(1)),
)
SAFETY_NET = Index("message_safety_net", _C.role, _C.is_shadow_side, _C.keep_until, sqlite_where=_C.role == constant("delivered"))
POISON = Index("message_set_aside", _C.role, sqlite_where=_C.role == constant("set-aside"))
HANDED_OVER = Index("message_handed_over", _C.role, sqlite_where=_C.role == constant("handed-over"))
UNFINISHED = Index(  # who needs a segment
    "message_content",
    _C.segment,
    sqlite_where=_C.role.in_([constant("primary"), constant("shadow"), constant("set-aside"), constant("handed-over")]),
)
LARGE_FILES = Index("message_large", _C.segment, _C.offset, sqlite_where=_C.segment == constant(0))  # those that there should be
EXPIRING = Index("message_expires", _C.expires_at, sqlite_where=_C.expires_at.is_not(None))
DELIVERED = Index("message_delivered", _C.is_shadow_side, _C.delivered_at, sqlite_where=_C.delivered_at.is_not(None))

LISTING = Table(
    "listing",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("message", Integer, primary_key=True),
    sqlite_with_rowid=False,
)

RETRY = Table(  # the delivery queues: a row for each fork that waits in one
    "retry",
    METADATA,
    Column("message", Integer, primary_key=True),
    Column("next_hop", Text, primary_key=True),
    Column("ordinals", Text, nullable=False),
    Column("failures_count", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("first_failed_at", Integer, nullable=False),
    Column("attempts_next_at", Integer, nullable=False),
    Column("last_reply", Text, nullable=False),
    Column("delay_notified", Integer, nullable=False),
    Column("waits_for", Text, nullable=False, server_default=""),  # the server whose lease or answer it waits for
    Column("notice_at", Integer),  # when its delay notice or its expiry is due
    sqlite_with_rowid=False,
)
BY_NEXT_HOP = Index("retry_next_hop", RETRY.c.next_hop, RETRY.c.message)
DUE = Index("retry_due", RETRY.c.next_hop, RETRY.c.attempts_next_at, RETRY.c.message)
NOTICES = Index("retry_notice", RETRY.c.notice_at, sqlite_where=RETRY.c.notice_at.is_not(None))
AWAITED = Index("retry_waits_for", RETRY.c.waits_for, RETRY.c.message, sqlite_where=RETRY.c.waits_for != constant(""))

SHADOW_FORK = Table(  # the shadow queues by next hop: a row for each fork of a shadow message that its primary server reported
    "shadow_fork",
    METADATA,
    Column("message", Integer, primary_key=True),
    Column("queue", Text, primary_key=True),  # primary server, a space, next hop
    Column("ordinals", Text, nullable=False),
    sqlite_with_rowid=False,
)
BY_SHADOW_QUEUE = Index("shadow_fork_queue", SHADOW_FORK.c.queue, SHADOW_FORK.c.message)

DISCARD = Table(
    "discard",
    METADATA,
    Column("sequence", Integer, primary_key=True),
    Column("asker", Text, nullable=False),
    Column("asker_database", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("ordinals", Text, nullable=False),
    Column("created_at", Integer, nullable=False),
    Column("next_hop", Text, nullable=False, server_default=""),
)
REACHED = "reached"  # as `status`: a `delivered` that says `Notification.is_reached`
Index("discard_asker", DISCARD.c.asker, DISCARD.c.sequence)
ENDS_UNHEARD = Index(  # who is not to forget the message before its former primary server has heard that it has ended elsewhere
    "discard_ends", DISCARD.c.message_id, sqlite_where=DISCARD.c.status.in_([constant("promoted"), constant("released")])
)
FORKS_UNHEARD = Index("discard_forks", DISCARD.c.message_id, sqlite_where=DISCARD.c.status == constant("forks"))

WAITING = Table(  # a notification without sequence yet: it would be acknowledged unheard with the later ones
    "waiting",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("side", Text, nullable=False),  # the generated message that it waits for
    Column("more_sides", Text, nullable=False),  # what it waits for after `side`
    Column("asker", Text, nullable=False),
    Column("asker_database", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("ordinals", Text, nullable=False),
    Column("created_at", Integer, nullable=False),
)
Index("waiting_side", WAITING.c.side)
Index("waiting_asker", WAITING.c.asker)

ACKNOWLEDGED = Table(
    "acknowledged",
    METADATA,
    Column("primary_server", Text, primary_key=True),
    Column("database", Text, primary_key=True),
    Column("incarnation", Integer, primary_key=True),
    Column("sequence", Integer, nullable=False),
    sqlite_with_rowid=False,
)

PEER = Table(
    "peer",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("database", Text, nullable=False),
    Column("incarnation", Integer, nullable=False),
    Column("began", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("heard_at", Integer),
    Column("is_forgotten", Integer, nullable=False),
)

PEER_DATABASE = Table(
    "peer_database",
    METADATA,
    Column("database", Text, primary_key=True),
    Column("server", Text, nullable=False),
    # the highest that was seen of it, once the server has another one
    Column("incarnation", Integer, nullable=False, server_default="0"),
    Column("began", Integer, nullable=False, server_default="0"),
    Column("position", Integer, nullable=False, server_default="0"),
)

RESUBMIT_REQUEST = Table(
    "resubmit_request",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("created_at", Integer, nullable=False),
    Column("from_at", Integer, nullable=False),
    Column("to_at", Integer, nullable=False),
    Column("next_hop", Text, nullable=False),
    Column("sender", Text, nullable=False),
    Column("recipient", Text, nullable=False),
    Column("message_id", Text, nullable=False),
    Column("primary_server", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("is_examined", Integer, nullable=False),  # the whole interval
    Column("examined_at", Integer, nullable=False),  # so far: `delivered_at` and internal id of the last message
    Column("examined_id", Integer, nullable=False),
    Column("examined_count", Integer, nullable=False),
    Column("resubmitted_count", Integer, nullable=False),
    Column("redundant_count", Integer, nullable=False),
    Column("outside_count", Integer, nullable=False),
    Column("missing_count", Integer, nullable=False),
    Column("elsewhere_count", Integer, nullable=False),
    sqlite_autoincrement=True,  # ids of messages are derived from the number: none is given twice, even after a removal
)

RESUBMITTED = Table(  # unfinished messages of unfinished requests: few
    "resubmitted",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("is_redundant", Integer, nullable=False),
    sqlite_with_rowid=False,
)

ASKER = Table(
    "asker",
    METADATA,
    Column("server", Text, primary_key=True),
    Column("asked_at", Integer, nullable=False),
)

SHADOW_QUEUE = Table(
    "shadow_queue",
    METADATA,
    Column("number", Integer, primary_key=True),  # N of Server\Shadow\N
    Column("primary_server", Text, nullable=False, unique=True),
)

SUSPENDED_QUEUE = Table(  # the delivery queues from which nothing is attempted
    "suspended_queue",
    METADATA,
    Column("next_hop", Text, primary_key=True),
    Column("suspended_at", Integer, nullable=False),
    Column("suspended_by", Text, nullable=False),
    sqlite_with_rowid=False,
)

SEGMENT = Table(
    "segment",
    METADATA,
    Column("segment", Integer, primary_key=True),
    Column("pinned_count", Integer, nullable=False),  # unfinished messages with content in it
    Column("keep_until", Integer, nullable=False),  # the latest of the finished ones
    Column("first_id", Integer, nullable=False),  # internal ids of the messages in it
    Column("last_id", Integer, nullable=False),
)

DELIVERED_TO = Table(  # the deliveries by which a message that is sent again is recognised
    "delivered_to",
    METADATA,
    Column("key", BLOB, primary_key=True),  # of message and recipient: `rules.delivery.duplicate_keys`
    Column("delivered_at", Integer, nullable=False),
    Column("message_id", Text, nullable=False),
    sqlite_with_rowid=False,
)
DELIVERED_AT = Index("delivered_to_at", DELIVERED_TO.c.delivered_at)

COUNTER = Table(
    "counter",
    METADATA,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("count", Integer, nullable=False),
    Column("octets", Integer, nullable=False),
    sqlite_with_rowid=False,
)
