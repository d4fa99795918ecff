"""`foretune data encode`: latents and text embeddings of all samples, by many workers, into an encoded set."""
