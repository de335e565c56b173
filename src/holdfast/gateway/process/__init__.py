"""The gateway as a process: what it needs on its machine, whether it is ready, how it reloads and goes down."""
