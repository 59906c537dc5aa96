"""The command line: one file a command, and the one place where analysis meets workloads and reports."""
