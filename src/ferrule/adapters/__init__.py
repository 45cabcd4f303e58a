"""The tools of a library as tools of other frameworks, with Ferrule's limits, memory, timeouts and records.

Each framework has its own module, which needs that framework to be installed. In the other direction,
`library.register` accepts other frameworks' tools as they are.
"""
