"""Who may deliver a message: the claims of nodes, the events that change them, and the rules of docs/design.md 6.2. Floor 2.

**A claim** is what one node is to one message, kept in its ledger. It changes only by the events below: each takes the claim as it is in
its transaction and returns a `Transition`, the claim after it and what must be told to whom in the same commit. Two rules of thumb:
nothing is given up before somebody else certainly has it, and only a higher number makes anyone yield.

**Why numbers.** Nodes that cannot hear each other may both believe that they are responsible. When they meet, one must yield, and both must
agree which. So each claim has a number: how often the message was taken over, how often its copy was placed since, and the database of the
node that gave the number. Two nodes never give the same number. A shadow server that takes over goes on above the number of its copy; a
primary server that places again takes a number above the old copy, which is then worth less than the new one.

**Why leases.** A number decides who yields when two nodes meet; it does not keep them from both delivering before they do. A lease does: a
primary server delivers only while every server that may hold a copy has heard it recently enough not to take over, by the arithmetic of
`leases`. Where a lease has ended, the server is asked first. Nothing here asks what time it is: leases come in as plain answers.

**The events.** Which roles may follow (P primary, A set aside by its owner, S shadow, U a shadow message that cannot be read, D delivered,
R released), or why nothing happens. `tests/ownership/test_table.py` tries every cell.

| event                   | unknown | primary | set aside | shadow | unreadable | delivered | released |
|-------------------------|---------|---------|-----------|--------|------------|-----------|----------|
| `placing`               | raises  | P       | raises    | raises | raises     | raises    | raises   |
| `placed`                | raises  | P       | A         | late   | late       | late      | late     |
| `released_acknowledged` | raises  | P       | A         | S      | U          | D         | R        |
| `gave_up`               | raises  | P       | A         | late   | late       | late      | late     |
| `choosing_again`        | raises  | P       | A         | late   | late       | late      | late     |
| `refused`               | raises  | R       | raises    | raises | raises     | raises    | raises   |
| `handing_over`          | raises  | A       | A         | late   | late       | late      | late     |
| `taken_back`            | raises  | other   | P         | other  | other      | late      | late     |
| `recorded`              | raises  | P D     | A D       | S D    | U D        | D         | D R      |
| `review`                | raises  | P S D R | A S D R   | late   | late       | late      | late     |
| `nobody_claims_more`    | raises  | P       | P A       | late   | late       | late      | late     |
| `answer_question`       | asked   | P S     | A S       | S      | asked      | asked     | asked    |
| `hold`                  | S       | P D     | A D       | S D    | S D        | over      | S D      |
| `heard` delivered       | over    | P D     | A D       | S D    | U D        | over      | over     |
| `heard` released        | over    | other   | other     | R      | other      | over      | over     |
| `heard` yours           | over    | other   | other     | S      | other      | over      | over     |
| `heard` promoted        | over    | asked   | asked     | other  | other      | over      | over     |
| `answered`              | raises  | late    | late      | P S D  | late       | late      | late     |
| `alone`                 | raises  | late    | late      | P D    | late       | late      | late     |
| `round_over`            | raises  | late    | late      | S      | late       | late      | late     |
| `dropped`               | raises  | other   | other     | other  | R          | late      | late     |

- *late*: the claim has ended, or become another, since that work began. What had to be told was told when it changed.
- *over*: nothing is left to end. A notification or an offer that is repeated, or comes after its message, changes nothing.
- *other*: it is about another role. A notification ends a copy, never this node's own claim, and not a copy that another server gave.
- *asked*: the answer is all there is: what this node says of the message; or that it should ask the one that took it over.
- *raises*: `IllegalTransition`. There is no such message, or only its owner may do that: whoever asks for it is wrong about the message.
"""
