"""How long a step takes: kernels, host, bus and communication, from the work of its trace."""
