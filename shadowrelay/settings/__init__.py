"""Configuration: the settings themselves (`values`, floor 0), reading, warnings, example, reload. docs/design.md 7."""
