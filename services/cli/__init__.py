"""The command line: one file per command, a folder where a command has more."""
