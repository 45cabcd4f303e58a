"""A library's tools as tools of other frameworks, with Ferrule's limits, memory, time-outs and records.

Each framework has a module of its own, which needs that framework to be installed. The other way round,
`library.register` takes other frameworks' tools as they are.
"""
