"""BucketedDDP: DistributedDataParallel reimplemented, to be read top to bottom."""
