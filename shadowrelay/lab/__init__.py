"""The lab: clusters of real nodes on one machine, mail through them, faults, and checks of what arrived. docs/lab.md."""
