"""The recovery scenarios of shadow redundancy, played in the lab: descriptions (`script`, `servers`, `networks`, `operations`),
what is judged (`figures`, `invariants`, `verdict`), all of it pure; and the hands that play (`player`) and look (`evidence`)."""
