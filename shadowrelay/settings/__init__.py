"""Everything about configuration: the settings themselves (`values`, floor 0), reading them, warnings, the example, a reload."""
