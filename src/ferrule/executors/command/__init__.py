"""Commands that end with everything they started."""
