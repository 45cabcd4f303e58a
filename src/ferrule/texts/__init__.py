"""Texts for people and models, in English and Chinese."""
