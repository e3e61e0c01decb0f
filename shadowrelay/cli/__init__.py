"""The command line `shadowrelay`: parses options, calls other packages, prints tables or JSON. docs/reference.md "Commands"."""
