"""Sources of images, buckets of equal shape, the order of samples, the cache of encoded ones, and batches."""
