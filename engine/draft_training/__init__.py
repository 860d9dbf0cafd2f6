"""How the committed draft in engine/data/smollm2-eagle was made, and how to make another: see README.md here.

Nothing here runs while serving. `corpus` (prompts) → `features` (the target writes, its hidden states are kept) →
`train` (the head learns from them) → `measure` (acceptance by position).
"""
