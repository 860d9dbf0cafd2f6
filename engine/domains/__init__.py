"""The domain of a request: an explicit label wins, otherwise a small classifier reads the prompt.

`domain_of` is what a server calls. `classify` and `explain` are the classifier alone; `train` fits its weights. Nothing
here needs more than the standard library at run time.
"""

from engine.domains.classifier import Contribution, Prediction, classify, explain
from engine.domains.label import LabelError, Source, clean_label, domain_of

__all__ = ["Contribution", "LabelError", "Prediction", "Source", "classify", "clean_label", "domain_of", "explain"]
