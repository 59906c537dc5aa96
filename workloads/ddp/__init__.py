"""BucketedDDP: DistributedDataParallel reimplemented, to be read top to bottom.

Start with `module` (what a person calls), then `reducer` (what happens in backward), `buckets`, `unused`, `replicas`.
"""

from workloads.ddp.module import BucketedDDP

__all__ = ["BucketedDDP"]
