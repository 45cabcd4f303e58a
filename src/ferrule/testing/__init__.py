"""Models for tests: one that follows a script, one that makes a recording, one that replays it."""

from ferrule.testing.recording import RecordedModel, RecordingModel
from ferrule.testing.scripted import ScriptedModel

__all__ = ["RecordedModel", "RecordingModel", "ScriptedModel"]
