"""Does a draft model fit a target in vLLM? From two Hugging Face folders, without loading either.

`folder` reads them, `sizes` counts their parameters, `pair` compares vocabularies and says what fits, `flags`
translates vLLM's removed command line flags, `padding` writes a draft whose vocabulary is as large as the target's.
"""

from engine.vet.folder import FolderError, ModelFolder, read_folder
from engine.vet.pair import Verdict, vet

__all__ = ["FolderError", "ModelFolder", "Verdict", "read_folder", "vet"]
