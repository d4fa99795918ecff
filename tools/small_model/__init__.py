"""How the shipped model `foretune-shapes` is made: its autoencoder, its start and its files."""
