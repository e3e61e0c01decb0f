"""Who may deliver a message: the rules of docs/design.md 6.2 and the events that drive them. Floor 2.

A claim changes only in this package: `primary` (accepting, placing, attempts, asking others) and `shadow` (holding, answering,
discarding, promoting). `rules` are the decisions that both rest on, one function a rule. Each event takes the claim as the ledger
has it in its transaction and returns a `Transition`: the claim after it, and what must be told to which server in the same commit.
Two rules of thumb: nothing is ever given up before somebody else certainly has it, and only a higher number makes anyone yield.

Nothing here may ask what time it is: leases and silence come in as plain answers of `leases`.
"""
