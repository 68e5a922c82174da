"""Bodies of other libraries by name: `hf/FOLDER-OR-ID`, `sentence/FOLDER-OR-PACKAGE`. A library is imported only when
somebody asks for a body of it."""

from torso.nets.bodies import families
from torso.nets.outside.hf_text import HfText
from torso.nets.outside.sentence import Sentence

families["hf"] = HfText
families["sentence"] = Sentence
