"""Which calls are allowed, need approval, or are denied."""
