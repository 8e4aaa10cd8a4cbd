"""Parts of the gateway measured by themselves, each in a process that `baton bench` starts."""
