"""The kinds of tools, one package each: how a kind is read and how it is run."""
