"""Rules of the seeds, each broken once by hand, and the tests of docs/sources.md that must notice: `python -m tests.mutants`.

Each mutant is tried in a copy of the tree; one that survives is a row whose test shows nothing. `tests/tidy/test_mutants.py` checks that
each text is still there once, and that each test is one of docs/sources.md.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """`path`: in `shadowrelay`. `tests`: one of them at least must fail."""

    rule: str
    path: str
    before: str
    after: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "heartbeat default 2m",
        "model/settings.py",
        "shadow_heartbeat_frequency: Annotated[Duration, Field(ge=SECOND, le=DAY)] = 2 * MINUTE",
        "shadow_heartbeat_frequency: Annotated[Duration, Field(ge=SECOND, le=DAY)] = 3 * MINUTE",
        ("tests/unit/model/test_settings.py::test_the_heartbeat_is_exchanges",),
    ),
    Mutant(
        "span default 3h",
        "model/settings.py",
        "= 3 * HOUR",
        "= 4 * HOUR",
        ("tests/unit/model/test_settings.py::test_the_defaults_are_those_of_the_design",),
    ),
    Mutant(
        "auto discard 2d",
        "model/settings.py",
        "shadow_message_auto_discard_interval: Annotated[Duration, Field(ge=5 * SECOND, le=90 * DAY)] = 2 * DAY",
        "shadow_message_auto_discard_interval: Annotated[Duration, Field(ge=5 * SECOND, le=90 * DAY)] = 3 * DAY",
        ("tests/unit/model/test_settings.py::test_the_defaults_are_those_of_the_design",),
    ),
    Mutant(
        "hold time 2d",
        "model/settings.py",
        "safety_net_hold_time: Annotated[Duration, Field(ge=timedelta(0), le=90 * DAY)] = 2 * DAY",
        "safety_net_hold_time: Annotated[Duration, Field(ge=timedelta(0), le=90 * DAY)] = 1 * DAY",
        ("tests/unit/model/test_settings.py::test_the_defaults_are_those_of_the_design",),
    ),
    Mutant(
        "remote 4",
        "model/settings.py",
        "else 4\n",
        "else 3\n",
        ("tests/unit/model/test_settings.py::test_the_defaults_are_those_of_the_design",),
    ),
    Mutant(
        "local 2",
        "model/settings.py",
        "max_retries_for_local_site_shadow: Annotated[Count, Field(ge=0, le=255)] = 2",
        "max_retries_for_local_site_shadow: Annotated[Count, Field(ge=0, le=255)] = 3",
        ("tests/unit/model/test_settings.py::test_the_defaults_are_those_of_the_design",),
    ),
    Mutant(
        "reject false",
        "model/settings.py",
        "reject_message_on_shadow_failure: bool = False",
        "reject_message_on_shadow_failure: bool = True",
        ("tests/unit/model/test_settings.py::test_the_defaults_are_those_of_the_design",),
    ),
    Mutant(
        "one site: local whatever preference",
        "rules/placement.py",
        "        return 0, rule.local_retries  # whatever",
        "        return rule.remote_retries, 0 if rule.preference is Preference.REMOTE_ONLY else rule.local_retries  # whatever",
        (
            "tests/pipeline/test_placement.py::test_where_the_boundary_has_one_site_its_servers_are_used_whatever_the_preference_says",
            "tests/unit/rules/test_placement.py::test_the_order_of_attempts",
        ),
    ),
    Mutant(
        "RemoteOnly no local",
        "rules/placement.py",
        "        return rule.remote_retries, 0\n",
        "        return rule.remote_retries, rule.local_retries\n",
        ("tests/unit/rules/test_placement.py::test_the_order_of_attempts",),
    ),
    Mutant(
        "LocalOnly no remote",
        "rules/placement.py",
        "    if rule.preference is Preference.LOCAL_ONLY:\n        return 0, rule.local_retries",
        "    if rule.preference is Preference.LOCAL_ONLY:\n        return 1, rule.local_retries",
        (
            "tests/unit/rules/test_placement.py::test_the_order_of_attempts",
            "tests/pipeline/test_placement.py::test_preference_counts_and_sites_decide_where_a_copy_is_tried",
        ),
    ),
    Mutant(
        "remote before local",
        "rules/placement.py",
        "return (*islice(cycle(remote), remote_count), *islice(cycle(local), local_count))",
        "return (*islice(cycle(local), local_count), *islice(cycle(remote), remote_count))",
        ("tests/pipeline/test_placement.py::test_all_attempts_in_other_sites_come_before_those_in_this_one",),
    ),
    Mutant(
        "remote count used",
        "rules/placement.py",
        "islice(cycle(remote), remote_count), *islice(cycle(local), local_count))",
        "islice(cycle(remote), remote_count + 1), *islice(cycle(local), local_count))",
        ("tests/pipeline/test_placement.py::test_preference_counts_and_sites_decide_where_a_copy_is_tried",),
    ),
    Mutant(
        "reject refused",
        "pipeline/accept.py",
        "if (reject and len(result.stored) - len(uncounted) < wanted) or is_lost:",
        "if is_lost:",
        ("tests/pipeline/test_accept.py::test_in_reject_mode_a_failed_copy_is_refused_after_the_unwinding_and_never_delivered",),
    ),
    Mutant(
        "not reject accepts",
        "pipeline/accept.py",
        "if (reject and len(result.stored) - len(uncounted) < wanted) or is_lost:",
        "if len(result.stored) - len(uncounted) < wanted:",
        (
            "tests/pipeline/test_accept.py::test_without_any_peer_it_is_accepted_alone_and_delivered",
            "tests/pipeline/test_accept.py::test_accepted_without_a_copy_it_is_made_redundant_as_soon_as_a_peer_is_there",
            "tests/pipeline/test_accept.py::test_a_client_that_vanished_before_a_failed_copy_leaves_what_the_mode_says",
        ),
    ),
    Mutant(
        "451 text",
        "model/replies.py",
        "Message failed to be made redundant",
        "Message could not be made redundant",
        ("tests/process/test_refused.py::test_the_451_of_a_node_has_the_words_of_exchange",),
    ),
    Mutant(
        "451 after unwinding",
        "pipeline/accept.py",
        "await until_taken(partial(self._context.ledger.commit, promises.verdict, message_id, unwinding), failed)",
        "asyncio.ensure_future(self._context.ledger.commit(promises.verdict, message_id, unwinding))",
        ("tests/pipeline/test_accept.py::test_the_451_does_not_leave_before_the_unwinding_is_committed",),
    ),
    Mutant(
        "repair after accept",
        "pipeline/accept.py",
        "        if replication is Replication.FAILED:\n            self._copy_repair.want",
        "        if replication is Replication.SUCCESS:\n            self._copy_repair.want",
        ("tests/pipeline/test_accept.py::test_accepted_without_a_copy_it_is_made_redundant_as_soon_as_a_peer_is_there",),
    ),
    Mutant(
        "discard asked in each session",
        "pipeline/heartbeat.py",
        "        if not self._asking[session.server].locked():",
        "        if False and not self._asking[session.server].locked():",
        (
            "tests/smtp/test_link_meets_receiver.py::test_xqdiscard_is_asked_in_every_session_with_a_peer_whatever_it_is_opened_for",
            "tests/smtp/test_link_meets_receiver.py::test_a_session_that_delivers_to_a_peer_fetches_its_notifications",
            "tests/process/test_peer_sessions.py::test_a_session_that_delivers_to_a_peer_asks_for_its_notifications_first",
        ),
    ),
    Mutant(
        "heartbeat while idle",
        "pipeline/heartbeat.py",
        "return min(poll, heartbeat) if is_awaited else heartbeat",
        "return min(poll, heartbeat) if is_awaited else 2 * heartbeat",
        ("tests/pipeline/test_loops.py::test_an_idle_peer_is_asked_once_a_heartbeat_and_one_whose_messages_are_held_once_a_poll",),
    ),
    Mutant(
        "poll while held",
        "pipeline/heartbeat.py",
        "return min(poll, heartbeat) if is_awaited else heartbeat",
        "return heartbeat",
        ("tests/pipeline/test_loops.py::test_an_idle_peer_is_asked_once_a_heartbeat_and_one_whose_messages_are_held_once_a_poll",),
    ),
    Mutant(
        "heartbeat timeout interval for kept",
        "pipeline/heartbeat.py",
        "heartbeat = min(heartbeat, transport.shadow_heartbeat_timeout_interval.total_seconds())",
        "pass",
        ("tests/pipeline/test_track.py::test_a_silent_next_hop_is_called_once_a_timeout_interval_while_something_is_kept_for_it",),
    ),
    Mutant(
        "expiry both",
        "rules/delivery.py",
        "return held_at + transport.safety_net_hold_time + transport.message_expiration_timeout",
        "return held_at + transport.message_expiration_timeout",
        ("tests/pipeline/test_loops.py::test_a_shadow_message_that_nobody_acknowledged_expires_after_both_times_and_not_after_one",),
    ),
    Mutant(
        "expiry both pipeline",
        "rules/delivery.py",
        "return held_at + transport.safety_net_hold_time + transport.message_expiration_timeout",
        "return held_at + transport.safety_net_hold_time",
        ("tests/pipeline/test_loops.py::test_a_shadow_message_that_nobody_acknowledged_expires_after_both_times_and_not_after_one",),
    ),
    Mutant(
        "safety net time",
        "rules/delivery.py",
        "return left_at + transport.safety_net_hold_time",
        "return left_at + transport.safety_net_hold_time / 2",
        ("tests/pipeline/test_loops.py::test_how_long_safety_net_keeps_what_was_delivered_or_discarded_is_a_setting",),
    ),
    Mutant(
        "auto discard used",
        "pipeline/sweep.py",
        "context.settings.transport.shadow_message_auto_discard_interval",
        "context.settings.transport.shadow_message_auto_discard_interval * 2",
        ("tests/pipeline/test_loops.py::test_notifications_that_nobody_asks_for_are_deleted_in_the_end",),
    ),
    Mutant(
        "silence limit max",
        "ownership/rules.py",
        "return max(mine, theirs).total_seconds()",
        "return min(mine, theirs).total_seconds()",
        ("tests/unit/ownership/test_fencing.py::test_silence_waits_for_the_longer_span",),
    ),
    Mutant(
        "new database",
        "pipeline/promote.py",
        "if peers.is_gone(primary, leases.silence_limit(primary.server)):",
        "if False:",
        ("tests/pipeline/test_takeover.py::test_a_primary_with_a_new_database_is_taken_over_within_a_heartbeat",),
    ),
    Mutant(
        "silence >= limit",
        "pipeline/promote.py",
        "is_silent = peers.silence(primary.server) >= limit",
        "is_silent = peers.silence(primary.server) >= limit / 2",
        ("tests/pipeline/test_takeover.py::test_a_primary_that_is_silent_for_the_span_is_taken_over_and_not_before",),
    ),
    Mutant(
        "partial discard",
        "ownership/claims.py",
        "return rules.all_done(claim, after) if after.is_done else Transition(claim, after)",
        "return rules.all_done(claim, after)",
        ("tests/pipeline/test_delivery.py::test_recipients_of_one_fork_are_discarded_while_the_other_waits",),
    ),
    Mutant(
        "hold only higher",
        "ownership/claims.py",
        "is_lower = claim is not None and claim.role is Role.SHADOW and rules.outranks(number, claim.number)",
        "is_lower = claim is not None and claim.role is Role.SHADOW",
        ("tests/unit/ownership/test_ownership_shadow.py::test_a_superseded_copy_is_answered_like_a_question",),
    ),
    Mutant(
        "duplicates sender",
        "rules/delivery.py",
        "{client}\\n{sender}\\n",
        "{client}\\n",
        ("tests/pipeline/test_duplicates.py::test_a_message_that_differs_is_another",),
    ),
    Mutant(
        "window default",
        "model/settings.py",
        "Field(ge=timedelta(0), le=49 * DAY)] = HOUR",
        "Field(ge=timedelta(0), le=49 * DAY)] = 2 * HOUR",
        ("tests/unit/model/test_settings.py::test_the_defaults_are_those_of_the_design",),
    ),
    Mutant(
        "haredirect server",
        "protocol/tracking.py",
        "        client=node, server=server, custom_data=custom_data,\n    )  # fmt: skip\n\n\ndef haredirectfail",
        "        client=server, server=node, custom_data=custom_data,\n    )  # fmt: skip\n\n\ndef haredirectfail",
        ("tests/pipeline/test_accept.py::test_haredirect_of_a_node_names_it_as_client_and_the_server_that_has_the_copy_as_server",),
    ),
    Mutant(
        "inside default",
        "rules/router.py",
        'update={"inside_boundary": _is_of(route, own)}',
        'update={"inside_boundary": False}',
        (
            "tests/pipeline/test_safety_net.py::test_mail_for_accepted_domains_is_inside_unless_its_route_says_otherwise",
            "tests/unit/rules/test_routing.py::test_a_route_is_inside_if_all_its_recipients_are_of_accepted_domains_unless_it_says_otherwise",
        ),
    ),
    Mutant(
        "outside not resubmitted",
        "rules/safety_net_rules.py",
        "is_inside = delivery.is_inside and destination(address).inside_boundary",
        "is_inside = True",
        ("tests/pipeline/test_safety_net.py::test_nothing_is_resubmitted_to_recipients_outside_the_boundary",),
    ),
    Mutant(
        "timeouts smaller",
        "model/receive_settings.py",
        "if self.connection_inactivity_timeout >= self.connection_timeout:",
        "if self.connection_inactivity_timeout > self.connection_timeout:",
        ("tests/unit/model/test_settings.py::test_the_inactivity_timeout_must_be_less_than_the_connection_timeout",),
    ),
    Mutant(
        "edge inactivity",
        "model/receive_settings.py",
        'return MINUTE if values.get("role")',
        'return 2 * MINUTE if values.get("role")',
        ("tests/unit/model/test_settings.py::test_the_role_decides_the_default_timeouts",),
    ),
    Mutant(
        "off not announced",
        "smtp/peer_part.py",
        "if not (self._reception.is_advertised and self.may_use_xshadow()):",
        "if not self.may_use_xshadow():",
        ("tests/smtp/test_receiver_peers.py::test_the_keyword_is_hidden_when_shadow_redundancy_is_off",),
    ),
    Mutant(
        "boundary",
        "smtp/peer_part.py",
        "if identity.boundary != reception.peers[identity.server].boundary:",
        "if False:",
        (
            "tests/pipeline/test_peer_settings.py::test_copies_stay_within_the_boundary",
            "tests/smtp/test_receiver_dialogs.py::test_the_dialog_goes_as_written",
        ),
    ),
)


def survives(mutant: Mutant, copy: Path) -> bool:
    """Whether its tests pass all the same, in this copy of the tree."""
    file = copy / "shadowrelay" / mutant.path
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(mutant.before, mutant.after, 1), encoding="utf-8")
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "", "-p", "no:cacheprovider", *mutant.tests]
        environment = os.environ | {"PYTHONPATH": str(copy)}
        return subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode == 0
    finally:
        file.write_text(text, encoding="utf-8")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="shadowrelay-mutants-") as directory:
        copy = Path(directory)
        for name in ("shadowrelay", "tests", "docs", "configs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / name, copy / name)
        alive = []
        for mutant in MUTANTS:
            if survives(mutant, copy):
                alive.append(mutant.rule)
            print("SURVIVES" if mutant.rule in alive else "dies    ", mutant.rule, flush=True)
    print(f"{len(MUTANTS) - len(alive)} of {len(MUTANTS)} mutants die")
    return bool(alive)


if __name__ == "__main__":
    raise SystemExit(main())
