"""What happens in each case. What should come out stands in the tests, which are named after the figures."""

from collections.abc import Callable

from tests.sla.figures.cases import BOTH, DAY, Case, at

A, B = BOTH
HOUR = 3600


def plain(case: Case) -> None:
    case.plain(0, "one")
    case.plain(100, "two")
    case.plain(2 * HOUR, "three")
    case.plain(DAY, "four")


def several(case: Case) -> None:
    """All copies that were wanted, or some; and what is nearly so, and is judged row by row."""
    case.several(0, "two")
    case.several(10, "three", ("s", "q", "r"))
    case.several(20, "four", ("s", "q", "r", "t"))
    case.several(30, "some")
    case.rows[-4]["replication"], case.rows[-4]["copies"] = "Failed", 1
    case.receive(40, "none", replication="Failed", copies=0)
    case.redirect(45, "none")
    case.send(50, "none")
    case.several(60, "same server twice", ("s", "s"))
    case.several(70, "one of three twice", ("s", "q", "s"))
    case.several(80, "each for one")
    case.rows[-2]["recipients"], case.rows[-1]["recipients"] = [A], [B]
    case.several(90, "discarded by another")
    case.rows[-1]["server"] = "r.several"
    case.several(100, "another primary")
    next(row for row in case.rows[::-1] if row["event"] == "HARECEIVE")["client_hostname"] = "r.several"
    case.several(110, "a later copy is the pair")
    case.rows[-8]["at"] = at(109)


def outlived(case: Case) -> None:
    """The primary server is lost, 600 s before it is taken over; "q" had a copy, too."""

    def taken(message: str) -> None:
        case.several(0, message)
        del case.rows[-3:]
        case.promote(700, message)
        case.send(800, message, server="s")

    taken("chosen again")
    case.redirect(702, "chosen again", server="s", shadow="q")
    taken("discarded")
    case.discard(801, "discarded", shadow="q")
    taken("next in line")
    case.promote(750, "next in line", new="q", old="s", silent=720)
    taken("not seen again")
    case.redirect(702, "not seen again", server="s", shadow="r")
    taken("seen before")
    case.discard(99, "seen before", shadow="q", to=[A])
    taken("copied anew")
    case.hold(701, "copied anew", shadow="q", primary="s")
    case.redirect(702, "copied anew", server="s", shadow="q")


def exposed(case: Case) -> None:
    case.receive(0, "copied later", replication="Failed")
    case.redirect(0, "copied later")  # not later than RECEIVE: it does not end what begins there
    case.redirect(30, "copied later")
    case.send(40, "copied later")
    case.receive(0, "done first", replication="Failed")
    case.send(5, "done first")
    case.redirect(30, "done first")
    case.receive(0, "open", replication="Disabled")
    case.held(0, "holder lost")
    case.promote(700, "holder lost", silent=-60)  # silent before it was acknowledged: exposed since then
    case.redirect(701, "holder lost", server="s", shadow="q")
    case.send(702, "holder lost", server="s")
    case.held(0, "done before silence")
    case.send(1, "done before silence")
    case.promote(700, "done before silence", silent=1)
    case.receive(0, "overlapping", replication="Failed")
    case.promote(90, "overlapping", silent=50)
    case.redirect(100, "overlapping")
    case.promote(140, "overlapping", new="q", old="s", silent=100)  # touches
    case.redirect(150, "overlapping")
    case.send(160, "overlapping")


def fates(case: Case) -> None:
    case.redirect(0, "moved", custom_data="S:ShadowElapsed=0.004000;S:SharedFate=machine")
    case.receive(0, "moved", replication="Failed", custom_data="S:Replication=Failed;S:SharedFate=s.fates")
    case.redirect(10, "moved", shadow="q", custom_data="S:SharedFate=rack7")
    case.redirect(30, "moved", shadow="r")
    case.send(40, "moved")
    case.receive(0, "named otherwise", replication="Failed", custom_data="S:Replication=Failed;S:NoSharedFate=x")
    case.send(20, "named otherwise")
    case.redirect(0, "lucky", custom_data="S:SharedFate=machine")
    case.redirect(0, "lucky", shadow="q")
    case.receive(1, "lucky", custom_data="S:Replication=Success;S:SharedFate=s.fates")
    case.send(20, "lucky")


def rebuilt(case: Case) -> None:
    case.without_log.add("burnt")
    case.hold(10, "taken over", primary="burnt")
    case.promote(700, "taken over", old="burnt")
    case.send(701, "taken over", server="s")
    case.hold(20, "told", primary="burnt")
    case.discard(25, "told", to=[A])
    case.discard(26, "told", to=[B])
    case.promote(30, "never held", new="q", old="burnt", to=[A])
    case.send(31, "never held", server="q", to=[A])
    case.hold(10, "no answer", primary="burnt")


def refused(case: Case) -> None:
    case.row("HAREDIRECTFAIL", 1, "p", "no copy")
    case.hold(0, "no copy")
    case.hold(0, "released")
    case.hold(0, "released", shadow="q")
    case.discard(1, "released", said="released")
    case.discard(1, "released", shadow="q", said="released")
    case.hold(0, "released once")
    case.hold(0, "released once", shadow="q")
    case.discard(1, "released once", said="released")


def notified(case: Case) -> None:
    case.held(0, "original")
    case.row("FAIL", 1, "p", "original", to=[A])
    case.send(2, "original", to=[B])
    case.discard(3, "original")
    case.row(
        "DSN", 1, "p", "notification", source="DSN", to=["sender@x.example"], source_context="failed", original_message="notified/original"
    )
    case.redirect(1, "notification", to=["sender@x.example"])
    case.hold(1, "notification", to=["sender@x.example"])
    case.send(4, "notification", to=["sender@x.example"])
    case.discard(9, "notification")


def journaled(case: Case) -> None:
    case.held(0, "original")
    case.send(1, "original")
    case.row(
        "RECEIVE", 1, "p", "report", source="AGENT", to=["journal@x"], source_context="JournalReport", original_message="journaled/original"
    )
    case.redirect(2, "report", to=["journal@x"])
    case.hold(2, "report", to=["journal@x"])
    case.discard(3, "original")
    case.send(4, "report", to=["journal@x"])
    case.discard(6, "report")


def resubmitted(case: Case) -> None:
    case.plain(0, "original")
    case.row("RESUBMIT", 100, "p", "again", source="SAFETYNET", reference="original", source_context="request 1")
    case.redirect(101, "again")
    case.hold(101, "again")
    case.send(102, "again")
    case.discard(103, "again")


def told(case: Case) -> None:
    for message, done, *discards in (
        ("parts", 10, (20, [A]), (30, [B])),
        ("late", 10, (131, BOTH)),
        ("on time", 10, (130, ())),
        ("skewed", 10, (9, ())),
    ):
        case.held(0, message)
        case.send(done, message)
        for seconds, to in discards:
            case.discard(seconds, message, to=to)
    case.held(0, "half")
    case.send(10, "half")
    case.discard(20, "half", to=[A])
    case.held(0, "not needed")
    case.send(10, "not needed")
    case.discard(20, "not needed", said="released")
    case.held(0, "back in time")
    case.send(-1, "back in time")


def ended(case: Case) -> None:
    case.held(0, "each way", to=["sent", "failed", "expired", "had it", "expired at the shadow server"])
    case.send(1, "each way", to=["sent"])
    case.row("FAIL", 2, "p", "each way", to=["failed"])
    case.row("EXPIRE", 3, "p", "each way", to=["expired"])
    case.row("FAIL", 3, "p", "each way", source="QUEUE", to=["expired"])
    case.row("DUPLICATEDELIVER", 4, "p", "each way", to=["had it"])
    case.row("EXPIRE", 5, "s", "each way", to=["expired at the shadow server"], client="p")
    case.row("DEFER", 6, "p", "each way")
    case.lives(3 * DAY, "p")


def lost(case: Case) -> None:
    case.receive(0, "set aside", to=[A], subject="=cmd()", sender="writer@x.example")
    case.row("POISONMESSAGE", 5, "p", "set aside", to=[A])
    case.held(0, "discarded for one")
    case.discard(5, "discarded for one", to=[A])
    case.held(0, "discarded", to=[A])
    case.discard(5, "discarded")
    case.held(0, "released", to=[A])
    case.discard(5, "released", said="released")
    case.receive(0, "both gone", server="burnt", to=[A])
    case.redirect(0, "both gone", server="burnt")
    case.receive(0, "not rescued", server="burnt", to=[A])
    case.redirect(0, "not rescued", server="burnt")
    case.hold(0, "not rescued", primary="burnt", to=[A])
    case.hold(0, "rescued", primary="burnt")
    case.promote(700, "rescued", old="burnt")
    case.send(701, "rescued", server="s")
    case.held(0, "queued", to=[A])
    case.row("DEFER", 2 * DAY, "p", "queued", to=[A])
    case.held(0, "nothing", to=[A])
    case.row("DEFER", 2 * DAY - 1, "p", "nothing", to=[A])
    case.receive(8 * DAY, "just due", to=[A])
    case.receive(8 * DAY + 0.000_001, "has a microsecond", to=[A])
    case.lives(10 * DAY, "p", "s")


def logends(case: Case) -> None:
    """Logs that end before the time of their mail is up, and nobody took the servers over."""
    case.receive(0, "seconds before", to=[A], replication="Failed")
    case.row("DEFER", 5, "p", "seconds before", to=[A])
    case.receive(0, "known by its heir", server="q", to=[A])
    case.promote(700, "known by its heir", old="q", to=[A])
    case.hold(1, "no log at all", primary="elsewhere", to=[A])
    case.receive(0, "elsewhere", server="s", to=[A])
    case.lives(10 * DAY, "s")


def twice(case: Case) -> None:
    def delivered(message: str, first: str = "p", later: str = "s", later_at: float = 1000) -> None:
        case.held(0, message, to=[A])
        case.send(10, message, server=first, to=[A])
        case.send(later_at, message, server=later, to=[A])

    delivered("disk")
    case.promote(900, "disk", reason="DatabaseChanged")
    delivered("rolled back", first="s", later="p")
    case.promote(5, "rolled back", reason="DatabaseRolledBack")
    delivered("cut off")
    case.promote(900, "cut off")
    delivered("two failed", later="q")
    case.promote(500, "two failed", new="s", old="p")
    case.promote(900, "two failed", new="q", old="s", reason="DatabaseChanged")
    for message, reason, old in (
        ("two far apart", "Silence", "s"),
        ("disk of the heir", "DatabaseChanged", "s"),
        ("no way", "Silence", "x"),
    ):
        delivered(message, later="q", later_at=20_000)
        case.promote(500, message, new="s", old="p")
        case.promote(500 + 3 * HOUR + 121, message, new="q", old=old, reason=reason)
    delivered("and back", later="p", later_at=20_000)
    case.promote(500, "and back", new="s", old="p")
    case.promote(500 + 3 * HOUR + 121, "and back", new="p", old="s")
    delivered("burnt and back", later="p", later_at=20_000)
    case.promote(500, "burnt and back", new="s", old="p", reason="DatabaseChanged")
    case.promote(500 + 3 * HOUR + 121, "burnt and back", new="p", old="s", reason="DatabaseChanged")
    delivered("burnt and back at once", later="p")
    case.promote(500, "burnt and back at once", new="s", old="p", reason="DatabaseChanged")
    case.promote(600, "burnt and back at once", new="p", old="s", reason="DatabaseChanged")
    for message, again in (("two heirs", 600), ("heirs far apart", 500 + 3 * HOUR + 121)):
        delivered(message, first="s", later="q", later_at=20_000)
        case.promote(500, message, new="s", old="p")
        case.promote(again, message, new="q", old="p")
    delivered("same primary twice", later="q")
    case.promote(500, "same primary twice", new="s", old="p")
    case.promote(501, "same primary twice", new="q", old="p", reason="DatabaseChanged")
    delivered("loaded", later="p")
    case.row("LOAD", 500, "p", "loaded", source="BOOTLOADER")
    delivered("loaded before", later="p")
    case.row("LOAD", 9, "p", "loaded before", source="BOOTLOADER")
    delivered("handed over")
    case.promote(400, "handed over", new="q", old="s", reason="Handover")
    delivered("bug", later="p")
    case.send(2000, "bug", to=[A])
    case.row("SENDEXTERNAL", 10, "p", "to nobody acknowledged", to=[A])
    case.row("SENDEXTERNAL", 11, "p", "to nobody acknowledged", to=[A])


def again(case: Case) -> None:
    case.plain(0, "first", internet_message_id="<same@again>")
    case.plain(100, "second", internet_message_id="<same@again>")
    case.plain(12_000, "in an interval without the first", internet_message_id="<same@again>")
    case.receive(200, "third", replication="Failed", internet_message_id="<same@again>")
    case.send(201, "third", internet_message_id="<same@again>")
    case.receive(300, "relayed", server="q", client="p", internet_message_id="<same@again>")
    case.receive(400, "to fewer", to=[A], internet_message_id="<same@again>")
    case.plain(0, "no id", internet_message_id="")
    case.plain(1, "no id either", internet_message_id="")
    for name, to in (("a", [A]), ("c", ["c@x.example"])):  # its rows differ, and the first one counts
        case.receive(500, f"also to {name}", to=BOTH, internet_message_id=f"<{name}@again>")
        case.receive(510, f"also to {name}", server="q", to=to, internet_message_id=f"<{name}@again>")
        case.plain(600, f"to both after {name}", internet_message_id=f"<{name}@again>")
    case.plain(0, "at once", internet_message_id="<at once@again>")
    case.plain(0, "at once too", internet_message_id="<at once@again>")


def delivered_again(case: Case) -> None:
    """What one client had acknowledged twice, and both were delivered: cause (e)."""
    same = {"internet_message_id": "<same@twice>"}
    case.plain(0, "first", client_hostname="client", **same)
    case.plain(100, "second", client_hostname="client", subject="again", **same)
    case.held(200, "in part", client_hostname="client", **same)
    case.send(201, "in part", to=[B])
    case.row("FAIL", 202, "p", "in part", to=[A])
    case.plain(300, "of another client", client_hostname="filter", **same)
    case.plain(400, "of nobody", **same)
    case.plain(401, "of nobody again", **same)
    case.receive(0, "not delivered", client_hostname="client", internet_message_id="<other@twice>")
    case.row("FAIL", 1, "p", "not delivered")
    case.plain(5, "delivered then", client_hostname="client", internet_message_id="<other@twice>")
    case.held(10, "queued", client_hostname="client", internet_message_id="<late@twice>")
    case.send(500, "queued")
    case.plain(20, "overtaken", client_hostname="client", internet_message_id="<late@twice>")
    case.plain(0, "of a server", client_hostname=case.host("q"), internet_message_id="<relayed@twice>")
    case.plain(1, "of a server again", client_hostname=case.host("q"), internet_message_id="<relayed@twice>")
    case.lives(10, "q")


def orphaned(case: Case) -> None:
    for message, shadow in (
        ("expired", "s"),
        ("silent", "gone"),
        ("never told", "s"),
        ("expired as a primary server", "s"),
        ("promoted", "s"),
        ("one recipient", "s"),
        ("told", "s"),
    ):
        case.redirect(0, message, shadow=shadow)
        case.hold(0, message, shadow=shadow)
        case.receive(0, message)
        case.send(1, message)
    case.row("EXPIRE", 4 * DAY, "s", "expired", client="p")
    case.row("EXPIRE", 4 * DAY, "s", "expired as a primary server")
    case.promote(700, "promoted")
    case.discard(5, "one recipient", to=[A])
    case.discard(5, "told", to=BOTH)
    case.hold(6 * DAY, "just due")
    case.hold(6 * DAY + 0.000_001, "has a microsecond")
    case.lives(10 * DAY, "s")
    case.lives(4 * DAY - 1, "gone")


def takenover(case: Case) -> None:
    for message in ("one", "two", "three"):
        case.held(0, message)
    case.promote(11_000, "one", silent=200, detected=10_990)
    case.promote(11_120.000_001, "two", silent=200, detected=10_990)
    case.send(11_200, "one", server="s")
    case.send(11_300, "two", server="s")
    case.promote(12_000, "three", new="q", reason="DatabaseChanged", silent=100, detected=11_880)
    case.promote(12_001, "three", new="q", reason="DatabaseChanged", silent=100, detected=11_880)
    case.promote(4 * HOUR, "three", new="s", old="q", reason="Handover", silent=20_000, detected=4 * HOUR + 1)
    case.lives(11_000, "p")
    case.lives(11_500, "p")
    case.lives(11_600, "p")


def apart(case: Case) -> None:
    """The network is cut, and both go on."""
    for message in ("taken", "also"):
        case.held(0, message)
    case.lives(5_000, "p")
    case.promote(11_000, "taken", silent=100, detected=10_990)
    case.promote(11_001, "also", silent=100, detected=10_990)
    case.lives(12_000, "p")
    case.hold(20_000, "taken")


def slow(case: Case) -> None:
    case.held(0, "next hop")
    case.row("DEFER", 10, "p", "next hop", source="DNS")
    case.send(200, "next hop")
    case.held(0, "both")
    case.row("DEFER", 10, "p", "both")
    case.promote(150, "both", silent=100, detected=149)
    case.send(200, "both", server="s")
    case.held(0, "ours")
    case.row("DEFER", 10, "p", "ours", source="ROUTING")
    case.send(61, "ours")
    for message, source in (("nothing but deferred", "SMTP"), ("nothing but deferred here", "ROUTING")):
        case.held(0, message)
        case.row("DEFER", 10, "p", message, source=source)
        case.send(200, message)
        case.discard(201, message)
    case.held(0, "quick")
    case.send(60, "quick")
    case.row("HAREDIRECTFAIL", 0, "p", "refused", client="p", peer="q")
    case.held(0, "refused", shadow_us=250_001)
    case.held(0, "late copy", shadow_us=250_001)
    case.held(120, "copy of a lost server", shadow_us=250_001)
    case.held(1_000, "discarded late")
    case.send(1_001, "discarded late")
    case.discard(1_122, "discarded late")
    case.held(0, "discarded late, a server was out")
    case.send(1, "discarded late, a server was out")
    case.discard(122, "discarded late, a server was out")
    case.lives(800, "p")
    case.lives(1_900, "q")  # and never again
    case.promote(2_000, "of q", old="q", silent=1_900, detected=1_999)
    case.held(2_120, "copy a heartbeat after a takeover", shadow_us=250_001)
    case.held(2_121, "copy later after a takeover", shadow_us=250_001)


def repeated(case: Case) -> None:
    case.plain(0, "all of it")
    case.rows += [dict(row, row_id=f"{number:032x}") for number, row in enumerate(case.rows)]
    for number, row in enumerate(case.rows[: len(case.rows) // 2]):
        row["row_id"] = f"{number:032x}"
    case.plain(10, "one row")
    case.rows[-2]["row_id"] = "f" * 32
    case.rows.append(dict(case.rows[-2]))
    case.plain(20, "deferred")
    case.row("DEFER", 20.5, "p", "deferred", row_id="d" * 32)
    case.rows.append(dict(case.rows[-1]))


def traps(case: Case) -> None:
    """Each is nearly plain, and is not."""
    case.plain(0, "another primary at the copy")
    next(row for row in case.rows if row["event"] == "HARECEIVE")["client_hostname"] = "q.traps"
    case.held(10, "one name twice", to=[A, A])
    case.send(11, "one name twice", to=[A])
    case.send(12, "one name twice", to=[A])
    case.discard(13, "one name twice")
    case.held(20, "half")
    case.send(21, "half", to=[A])
    case.discard(22, "half")
    case.held(30, "copy after")
    case.rows[-3]["at"] = case.rows[-1]["at"].replace(microsecond=1)
    case.send(31, "copy after")
    case.discard(32, "copy after")
    case.held(40, "discarded for one")
    case.send(41, "discarded for one")
    case.discard(42, "discarded for one", to=[A])
    case.held(50, "nobody", to=[])
    case.discard(52, "nobody")
    case.held(60, "another says discarded")
    case.send(61, "another says discarded")
    case.discard(62, "another says discarded", shadow="q")
    case.held(63, "twice in one row", to=[A])
    case.send(64, "twice in one row", to=[A, A])
    case.send(65, "twice in one row", to=[A])
    case.discard(66, "twice in one row")
    case.plain(70, "deferred once")
    case.row("DEFER", 70.5, "p", "deferred once")
    case.plain(80, "deferred twice")
    case.row("DEFER", 80.5, "p", "deferred twice")
    case.row("DEFER", 80.7, "p", "deferred twice")


def exchange16(case: Case) -> None:
    case.redirect(0, "copied")
    case.hold(0, "copied")
    case.receive(0.5, "copied", replication="")
    case.row("SEND", 1, "p", "copied", peer="s")  # a hop
    case.receive(1.5, "copied", server="s", replication="")
    case.row("DELIVER", 2, "s", "copied", source="STOREDRIVER")
    case.row("HADISCARD", 3, "s", "copied", (), source_context="", client="p")
    case.receive(0, "alone", replication="", sender="sender@x")
    case.row("DELIVER", 1, "p", "alone", to=[A])
    case.row("DSN", 60, "p", "notification", to=["sender@x"], source="DSN", reference="<exchange16/alone>", subject="Undeliverable: alone")
    case.promote(100, "copied")
    case.rows[-1] |= {"silent_since": None, "detected_at": None, "reason": ""}
    case.row("RECEIVE", 0, "p", "submitted", source="STOREDRIVER")


def replaced(case: Case) -> None:
    for message, delivered in (("all", ["M1@x", "m2@x", "bert.m@x", "f@x"]), ("one missing", ["m1@x", "bert.m@x", "f@x"])):
        case.redirect(0, message)
        case.receive(0.5, message, to=["Group@x", "Bert@X", "fred@x"], replication="")
        case.row("EXPAND", 1, "p", message, to=["m1@X", "m2@x"], source="ROUTING", related_recipient="group@X")
        case.row("RESOLVE", 1, "p", message, to=["bert.M@x"], source="RESOLVER", related_recipient="bert@x")
        case.row("REDIRECT", 1, "p", message, to=["f@x"], source="ROUTING", related_recipient="fred@x;f@x")
        case.row("DELIVER", 2, "p", message, to=delivered, source="STOREDRIVER")
    case.receive(10, "ended otherwise", to=["a@x", "b@x", "c@x", "d@x", "e@x", "f@x"], replication="")
    case.row("DUPLICATEREDIRECT", 11, "p", "ended otherwise", to=["b@x"], source="ROUTING", related_recipient="A@x")
    for event, recipient in (("DROP", "b@x"), ("DUPLICATEEXPAND", "c@x"), ("MODERATORREJECT", "d@x"), ("MODERATIONEXPIRE", "E@x")):
        case.row(event, 12, "p", "ended otherwise", to=[recipient], source="ROUTING")
    case.lives(3 * DAY, "p")


def redirected(case: Case) -> None:
    said = "S.redirected = 250 2.6.0 <1@x> [InternalId=5, Hostname=S.redirected] Queued mail for redundancy"
    for message, peer, context in (("said", "p", said), ("says nothing", "p", "08DC1DB5A1B2C3D5"), ("named", "s", "")):
        case.redirect(0, message, shadow=peer, source_context=context)
        case.receive(0.5, message, replication="")
        case.row("DELIVER", 1, "p", message, source="STOREDRIVER")
    case.lives(1, "s")


def exchange10(case: Case) -> None:
    case.receive(0, replication="")
    case.row("DELIVER", 2, "p", source="STOREDRIVER")


def nowhere(case: Case) -> None:
    case.plain()


def relayed(case: Case) -> None:
    """An edge relays to a hub by TRACK and keeps the shadow; the second hub burns with its log, and the edge takes two messages back, one
    to deliver it, and one to relay it to the second hub again."""
    kept = "shadow kept as relayed/{}"
    case.row("SEND", 1, "edge", "first", client="edge", peer="hub", source_context=kept.format("first-kept"))
    case.row("SEND", 1.5, "edge", "first", client="edge", peer="hub", source_context=kept.format("first-kept"))  # offered again
    case.receive(2, "first", "edge", source_context="delayed: done", ack_us=2_000_000)
    case.receive(1.1, "first-kept", "hub", custom_data=f"S:Replication=Success;S:ShadowAt={case.host('edge')}", reference="relayed/first")
    case.send(3, "first-kept", "hub")
    case.row("HADISCARD", 5, "edge", "first-kept", (), client="hub", peer="edge", source_context="delivered")
    case.receive(10, "second", "edge", replication="Disabled")
    case.row("SEND", 11, "edge", "second", client="edge", peer="burnt", source_context=kept.format("second-kept"))
    case.promote(700, "second-kept", "edge", "burnt")
    case.send(701, "second-kept", "edge")
    case.without_log.add("burnt")
    case.receive(20, "third", "edge", replication="Disabled")
    case.row("SEND", 21, "edge", "third", client="edge", peer="burnt", source_context=kept.format("third-kept"))
    case.promote(702, "third-kept", "edge", "burnt")  # and relayed to the same server again, which is back
    case.row("SEND", 703, "edge", "third-kept", client="edge", peer="burnt", source_context=kept.format("third-again"))
    case.row("HADISCARD", 705, "edge", "third-again", (), client="burnt", peer="edge", source_context="delivered")


def backed(case: Case) -> None:
    """A hub has a copy of what an edge relayed to it by TRACK, before it answers: but for the edge's copy, a plain message."""
    case.receive(0, "first", "edge", replication="Disabled")
    case.redirect(0.1, "kept", "hub", "s")
    case.hold(0.1, "kept", "s", "hub")
    case.receive(
        0.2, "kept", "hub", client="edge", custom_data=f"S:Replication=Success;S:ShadowAt={case.host('edge')}", reference="backed/first"
    )
    case.row("SEND", 0.3, "edge", "first", client="edge", peer="hub", source_context="shadow kept as backed/kept")
    case.send(1, "kept", "hub")
    case.row("HADISCARD", 2, "s", "kept", (), client="hub", peer="s", source_context="delivered")


def left(case: Case) -> None:
    """Copies of what p never accepted, and of what it must have accepted: its log is here all the time."""
    case.lives(-600, "p")
    case.hold(0, "gone")
    case.redirect(0, "gone")
    case.hold(0, "gone again")
    case.hold(60, "gone again", shadow="q")
    case.discard(61, "gone again", shadow="q", said="released")
    case.row("EXPIRE", 5 * DAY, "s", "gone again", client="p")
    case.hold(0, "told")
    case.discard(1, "told")
    case.hold(0, "sent")
    case.send(1, "sent", to=[A])
    case.row("SEND", 0.3, "edge", "first", client="edge", peer="p", source_context="shadow kept as left/kept")
    case.lives(600, "p")
    case.lives(700, "edge")
    case.hold(599, "at the end")
    case.lives(9 * DAY, "s", "q")


_CASES: tuple[Callable[[Case], None], ...] = (
    plain, several, outlived,
    exposed, fates, rebuilt, refused, left, notified, journaled, resubmitted, told, ended, lost, logends, twice, again,
    delivered_again, orphaned,
    takenover, apart, slow, repeated, traps, exchange16, replaced, redirected, exchange10, nowhere, relayed, backed,
)  # fmt: skip


def all_cases() -> list[Case]:
    cases = []
    for play in _CASES:
        name = play.__name__
        formats = {"exchange16": "exchange2016", "replaced": "exchange2013", "redirected": "exchange2013", "exchange10": "exchange2010"}
        case = Case(name, format=formats.get(name, "shadowrelay"), has_sites=name != "nowhere")
        play(case)
        cases.append(case)
    return cases
