"""Rules that decide which node may deliver a message: claims, the events that change them, leases. docs/design.md 6.2. Floor 2.

**A claim** is a node's record of its own part in a message, kept in its ledger. It changes only by the events below. Each event takes
the claim as it is in its transaction and returns a `Transition`: the claim after it, and the notifications to queue in the same commit.
Two principles: a node gives a message up only when another node certainly has it, and yields only to a higher number.

**Why numbers.** Nodes that cannot reach each other may both believe that they are responsible. When they meet, one must yield, and both
must agree which. So each claim has a number: how often the message was taken over, how often a copy was placed since, and the database of
the node that assigned the number. Two nodes never assign the same number. A shadow server that takes over uses a number above that of its
copy; a primary server that places again uses a number above that of the old copy, so that the new copy outranks it.

**Why leases.** A number decides which node yields when two meet; until then both could deliver. A lease prevents that: a primary server
delivers only while every server that may hold a copy has recently proved receipt of something it sent, and so will not take over yet
(`rules` has the arithmetic). After a lease has ended, the primary asks that server first. No function here reads a clock.

**The events.** Each cell lists the roles that may follow (P primary, A set aside by its owner, H handed over by a node that drains,
S shadow, U a shadow message that cannot be read, D delivered, R released), or why nothing happens. `tests/ownership/test_table.py`
tries every cell.

| event                   | unknown | primary | set aside | handed over | shadow | unreadable | delivered | released |
|-------------------------|---------|---------|-----------|-------------|--------|------------|-----------|----------|
| `placing`               | raises  | P       | raises    | raises      | raises | raises     | raises    | raises   |
| `placed`                | raises  | P       | A         | H           | late   | late       | late      | late     |
| `released_acknowledged` | raises  | P       | A         | H           | S      | U R        | D         | R        |
| `no_longer_chosen`      | over    | P       | A         | H           | late   | late       | late      | late     |
| `fate_shared`           | over    | P       | A         | H           | late   | late       | late      | late     |
| `choosing_again`        | over    | P       | A         | H           | late   | late       | late      | late     |
| `client_refused`        | raises  | R       | raises    | raises      | raises | raises     | raises    | raises   |
| `copies_now_wanted`     | over    | P       | A         | H           | other  | other      | late      | late     |
| `handing_over`          | over    | A       | A         | A           | late   | late       | late      | late     |
| `handed_over_by_drain`  | raises  | H       | other     | other       | late   | late       | late      | late     |
| `taken_back`            | raises  | other   | P         | other       | other  | other      | late      | late     |
| `recorded`              | raises  | P D     | A D       | D H         | S D    | U D        | D         | D R      |
| `review`                | raises  | P S D   | A S D     | S D H       | late   | late       | late      | late     |
| `nobody_claims_more`    | raises  | P       | P A       | P H         | late   | late       | late      | late     |
| `claimed_again`         | over    | P       | A         | H           | late   | late       | late      | late     |
| `answer_question`       | asked   | P S     | A S       | S H         | S      | asked      | asked     | asked    |
| `hold`                  | S       | P D     | A D       | D H         | S D    | S D        | over      | S D      |
| `relayed_again`         | asked   | P       | A         | H           | asked  | asked      | asked     | asked    |
| `heard` delivered       | over    | P D     | A D       | D H         | S D    | U D        | over      | over     |
| `heard` released        | over    | other   | other     | other       | R      | other      | over      | over     |
| `heard` yours           | over    | other   | other     | other       | S      | other      | over      | over     |
| `heard` promoted        | over    | asked   | asked     | asked       | S      | other      | over      | over     |
| `heard` forks           | over    | other   | other     | other       | asked  | other      | over      | over     |
| `reconciled`            | over    | D       | D         | D           | S D R  | D          | over      | over     |
| `met`                   | over    | late    | late      | late        | S D    | late       | late      | late     |
| `followed`              | over    | late    | late      | late        | S D    | late       | late      | late     |
| `answered`              | raises  | late    | late      | late        | P S D  | late       | late      | late     |
| `nobody_left_to_ask`    | over    | late    | late      | late        | P D    | late       | late      | late     |
| `new_round`             | raises  | late    | late      | late        | S      | late       | late      | late     |
| `expired`               | raises  | other   | other     | other       | R      | other      | late      | late     |
| `copy_given_up`         | raises  | other   | other     | other       | U      | other      | late      | late     |
| `unreadable_removed`    | raises  | other   | other     | other       | other  | R          | late      | late     |

- *late*: the claim has ended or changed since the operation began. Other nodes were notified when it changed.
- *over*: there is nothing left to end or to change. A repeated or late notification or offer changes nothing.
- *other*: the event concerns another role. A notification ends a copy, never this node's own claim nor a copy from another server.
- *asked*: nothing changes but the answer: the status of the message, or the outcome that says to ask the server that took it over. On a
  copy, `promoted` from its own primary server says that it has yielded: ask whom it yielded to. From another server it says that there may
  be two primary servers: ask that one.
- *raises*: `IllegalTransition`: there is no such message, or only its owner may do that. The claim has ended
  since the caller looked, or the caller has a bug.
"""
