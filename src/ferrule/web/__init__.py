"""The web page of `ferrule serve`: its built files, which `make web` writes and the wheel contains."""

from ferrule.web.page import page_routes

__all__ = ["page_routes"]
