"""The command `shadowrelay`: words on a terminal to calls, results to tables or JSON. No decision about mail is made here."""
