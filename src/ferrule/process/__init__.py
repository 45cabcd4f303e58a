"""Worker processes that run functions and can be killed."""
