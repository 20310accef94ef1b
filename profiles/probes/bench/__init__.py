"""What probes stand on: their contract, the shapes to measure, the processes and the clocks."""
