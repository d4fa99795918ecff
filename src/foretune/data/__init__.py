"""Image sources, aspect-ratio buckets, the order of samples, the cache of encoded samples, and batches."""
