"""What a person with a GPU runs once, to prove what cannot run on a CPU: `make gpu_proofs`."""
