"""The standing workloads: what agents do to a server, run on several servers side by side."""
