"""The catalogue: which tools there are, how they are found, checked and described."""
