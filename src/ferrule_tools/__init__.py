"""The tools that come with Ferrule."""
