"""Who may deliver a message: the rules of docs/design.md 6.2 and the events that drive them.

A claim changes only in this package: `primary` (accepting, placing, attempts), `meeting` (a primary asks others), `shadow`
(holding, discarding, promoting), `status` (answering). `rules` are the decisions that all of them rest on, one function
a rule. Each event takes the claim as the ledger has it in its transaction and returns a `Transition`: the claim after it,
and what must be told to which server in the same commit. Two rules of thumb: nothing is ever given up before somebody
else certainly has it, and only a higher number makes anyone yield.

Nothing here may ask what time it is: leases and silence come in as plain answers of `core.fencing`.
"""
