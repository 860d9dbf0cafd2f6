"""Acceptance of a head by position, domain and regime: `python -m engine.draft_training.measure HEAD FEATURES`.

Position i counts only where the positions before were kept. Greedy: the share of guesses equal to the target's choice,
along answers the target wrote greedily. Sampled (temperature 1): a token x of the answer, which came from the target's
p, is kept with probability min(1, q(x) / p(x)) had the draft proposed it, so each start is carried on with the product
of these as its weight, and position i accepts with probability Σ min(p, q).
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from torch import Tensor

from engine.draft_training.export import load_head
from engine.draft_training.features import DOMAINS
from engine.draft_training.head import EagleHead
from engine.draft_training.output import TargetOutput
from engine.draft_training.train import load_features
from engine.models import fetch_smollm2

POSITIONS = 5


@torch.inference_mode()
def acceptance(head: EagleHead, target: TargetOutput, one: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Of one sequence: by position, the weight that reached it and the weight kept there, (POSITIONS,) each."""
    prompt, _, greedy = one["about"].tolist()
    ids, hidden = one["ids"], one["hidden"].float()
    allowed = head.output_token_ids.long()
    rows = target.embedding[allowed]
    outputs = head(target.embed(ids[None, 1:]), hidden[None, :-1], POSITIONS)
    starts = torch.arange(prompt - 2, len(ids) - 1 - POSITIONS)  # index of position 1; x[index + 2] is guessed
    reach, kept, weight = torch.zeros(POSITIONS), torch.zeros(POSITIONS), torch.ones(len(starts))
    for depth in range(POSITIONS):
        index = starts + depth
        wanted = target.logits(hidden[index + 1])
        guess = torch.full_like(wanted, -torch.inf)
        guess[:, allowed] = target.logits(outputs[depth][0, index], rows)
        if greedy:
            now = (guess.argmax(-1) == wanted.argmax(-1)).float()
            onward = now
        else:
            p, q = wanted.softmax(-1), guess.softmax(-1)
            now = torch.minimum(p, q).sum(-1)
            chosen = ids[index + 2][:, None]
            onward = (q.gather(1, chosen) / p.gather(1, chosen)).clamp(max=1.0)[:, 0]
        reach[depth], kept[depth] = weight.sum(), (weight * now).sum()
        weight = weight * onward
    return reach, kept


def table(head: EagleHead, target: TargetOutput, sequences: list[dict[str, Tensor]]) -> str:
    """A Markdown table: acceptance at positions 1 to 5, and accepted tokens a step at K = 5."""
    sums: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for one in sequences:
        if len(one["ids"]) - int(one["about"][0]) > POSITIONS:
            sums[int(one["about"][1]), 1 - int(one["about"][2])].append(acceptance(head, target, one))
    lines = [
        "| domain | regime | 1 | 2 | 3 | 4 | 5 | accepted of 5 |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (domain, sampled), pairs in sorted(sums.items()):
        reach, kept = (torch.stack(column).sum(0) for column in zip(*pairs, strict=True))
        curve = kept / reach.clamp(min=1e-9)  # a position never reached has 0 / 0: it adds nothing
        cells = " | ".join(f"{a:.2f}" if r > 0 else "-" for a, r in zip(curve.tolist(), reach.tolist(), strict=True))
        regime = "sampled" if sampled else "greedy"
        lines.append(f"| {DOMAINS[domain]} | {regime} | {cells} | {curve.cumprod(0).sum():.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table of the head in a folder on a folder of shards."""
    parser = argparse.ArgumentParser(prog="python -m engine.draft_training.measure", description=__doc__)
    parser.add_argument("head", type=Path)
    parser.add_argument("features", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(table(load_head(options.head), TargetOutput(fetch_smollm2()), load_features(options.features)))


if __name__ == "__main__":
    main()
