"""Tools of other frameworks, called the way those frameworks call them."""
