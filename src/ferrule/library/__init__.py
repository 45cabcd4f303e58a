"""The entry point for tools: one library over registry, engine and hub."""

from ferrule.library.library import RegistrationResult, UnifiedToolLibrary

__all__ = ["RegistrationResult", "UnifiedToolLibrary"]
