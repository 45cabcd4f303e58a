"""Tools of other frameworks as tools of Ferrule: read from their objects, called the way their framework does."""
