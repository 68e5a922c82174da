"""How does a client get its own model?"""

from torso.personal.finetune import FineTune, Personal, personals

__all__ = ["FineTune", "Personal", "personals"]
