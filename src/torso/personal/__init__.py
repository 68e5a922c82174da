"""How does a client get its own model?"""

from torso.personal.base import FineTune, OwnModelStart, Personal, VisitStart, personals
from torso.personal.fomo import Fomo
from torso.personal.kept import Ditto, Kept

__all__ = ["Ditto", "FineTune", "Fomo", "Kept", "OwnModelStart", "Personal", "VisitStart", "personals"]
