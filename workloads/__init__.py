"""Everything that runs torch: the reimplemented DDP, reference jobs, the recorder and the sweep."""
