"""Several tools for one job: the best of them is picked, or their answers are combined."""

from ferrule.hub.candidates import ToolCandidate, hub_result_dict
from ferrule.hub.hub import HubConfig, ToolHub
from ferrule.hub.synthesis import Synthesizer

__all__ = ["HubConfig", "Synthesizer", "ToolCandidate", "ToolHub", "hub_result_dict"]
