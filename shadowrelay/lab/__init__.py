"""The lab: clusters of real nodes on one machine, real mail through them, faults, and the account of what became of it."""
