"""Several tools for one job: the best of them is picked, or their answers are combined."""

from ferrule.hub.answer import hub_result_dict
from ferrule.hub.candidate import ToolCandidate
from ferrule.hub.config import HubConfig
from ferrule.hub.hub import ToolHub
from ferrule.hub.synthesis import Synthesizer

__all__ = ["HubConfig", "Synthesizer", "ToolCandidate", "ToolHub", "hub_result_dict"]
