"""Profiler traces of DistributedDataParallel runs in, advice out."""
