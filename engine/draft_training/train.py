"""Train the head on the features of `features`: `python -m engine.draft_training.train --out FOLDER`.

The loss is the cross-entropy to the target's distribution on the head's output rows, at two unrolled depths. The layer
starts as the target's last, and `fc` as the ridge regression of that layer's input on what `fc` is given, so the
untrained head is already a rough guess of the next hidden state.
"""

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor, nn

from engine.draft_training.export import load_head, save_head
from engine.draft_training.features import load_shard
from engine.draft_training.head import EagleHead, HeadConfig
from engine.draft_training.output import TargetOutput, most_frequent
from engine.draft_training.teacher import Teacher
from engine.models import fetch_smollm2

DEPTH_WEIGHTS = (1.0, 0.5)
PROMPT_SHARE = 0.25  # of the prompts' positions take part in the loss: they are text, though not the target's own
WARMUP = 40
CLIP = 0.5
END_TOKEN = 2
_FITTED = 20_000  # tokens for the regression
_RIDGE = 1e-3


class Batch(NamedTuple):
    """Sequences padded to one length. `learn` (batch, n - 1) marks the indices whose prediction counts."""

    ids: Tensor  # (batch, n)
    hidden: Tensor  # (batch, n, d)
    learn: Tensor


Sequences = list[dict[str, Tensor]]


def load_features(folder: Path) -> Sequences:
    """All sequences of a folder of shards; ids cut to those with a hidden state."""
    found = [sequence for path in sorted(folder.glob("*.safetensors")) for sequence in load_shard(path)]
    if not found:
        raise FileNotFoundError(f"{folder} has no shards; make them with `python -m engine.draft_training.features`")
    for sequence in found:
        sequence["ids"] = sequence["ids"][: len(sequence["hidden"])].long()
    return found


def batches(sequences: Sequences, tokens: int, rng: Random) -> Iterator[Batch]:
    """One epoch of batches of about `tokens` tokens, sequences of like length together, in random order."""
    order = sorted(sequences, key=lambda one: len(one["ids"]) + rng.random() * 16)
    groups: list[Sequences] = [[]]
    for one in order:
        if (len(groups[-1]) + 1) * len(one["ids"]) > tokens and groups[-1]:
            groups.append([])
        groups[-1].append(one)
    rng.shuffle(groups)
    for group in groups:
        yield collate(group, rng)


def collate(group: Sequences, rng: Random) -> Batch:
    """Pad a group; every index whose target is in the answer counts, and a random quarter of the prompt's."""
    n = max(len(one["ids"]) for one in group)
    ids = torch.zeros(len(group), n, dtype=torch.long)
    hidden = torch.zeros(len(group), n, group[0]["hidden"].shape[-1])
    learn = torch.zeros(len(group), n - 1, dtype=torch.bool)
    for i, one in enumerate(group):
        size, prompt = len(one["ids"]), int(one["about"][0])
        ids[i, :size] = one["ids"]
        hidden[i, :size] = one["hidden"].float()
        # index j is compared with the target's distribution after x[j+1]: the answer's begins at x[prompt - 1]
        learn[i, : size - 1] = torch.tensor(
            [j + 1 >= prompt - 1 or rng.random() < PROMPT_SHARE for j in range(size - 1)]
        )
    return Batch(ids, hidden, learn)


def unrolled_loss(head: EagleHead, batch: Batch, target: TargetOutput, rows: Tensor) -> list[Tensor]:
    """Mean cross-entropy in nats to the target's distribution on `rows` (outputs, d), one number a depth."""
    outputs = head(target.embed(batch.ids[:, 1:]), batch.hidden[:, :-1], len(DEPTH_WEIGHTS))
    with torch.no_grad():
        wanted = target.logits(batch.hidden[:, 1:][batch.learn], rows).softmax(-1)
    losses = []
    for depth, output in enumerate(outputs):
        learn = batch.learn.clone()
        learn[:, :depth] = False
        picked = learn[batch.learn]
        predicted = target.logits(output[learn], rows).log_softmax(-1)
        losses.append(-(wanted[picked] * predicted).sum(-1).mean())
    return losses


def token_counts(sequences: Sequences, vocabulary: int) -> Tensor:
    """How often each token occurs; the answers' tokens count five times the prompts'."""
    counts = torch.zeros(vocabulary)
    for one in sequences:
        weight = torch.full((len(one["ids"]),), 0.2)
        weight[int(one["about"][0]) :] = 1.0
        counts.index_add_(0, one["ids"], weight)
    return counts


def blank_head(target: TargetOutput, sequences: Sequences, size: int) -> EagleHead:
    """A head with random weights whose outputs are the `size` most frequent tokens of `sequences`."""
    vocabulary = len(target.embedding)
    ids = most_frequent(token_counts(sequences, vocabulary), size, (END_TOKEN,))
    return EagleHead(HeadConfig.of(target.config, size), ids)


@torch.no_grad()
def initial_head(folder: Path, target: TargetOutput, sequences: Sequences, size: int) -> EagleHead:
    """The head before training: see the module."""
    head, width = blank_head(target, sequences, size), target.embedding.shape[1]
    head.layer.load_state_dict(target.last_layer)
    teacher = Teacher(folder, 1, max(len(one["ids"]) for one in sequences))
    gram, cross, seen = torch.zeros(2 * width, 2 * width), torch.zeros(2 * width, width), 0
    for one in sequences:
        entering, leaving = teacher.prefill(0, one["ids"])
        both = torch.cat((head.embed_norm(target.embed(one["ids"][1:])), head.hidden_norm(leaving[:-1])), -1)
        weight = entering[1:].pow(2).mean(-1, keepdim=True).rsqrt()  # a few tokens have enormous hidden states
        gram += (both * weight).T @ (both * weight)
        cross += (both * weight).T @ (entering[1:] * weight)
        seen += len(one["ids"])
        if seen > _FITTED:
            break
    gram += _RIDGE * gram.diagonal().mean() * torch.eye(2 * width)
    head.fc.weight.copy_(torch.linalg.solve(gram, cross).T)
    return head


def _rate(step: int, steps: int) -> float:
    warm = min(1.0, (step + 1) / WARMUP)
    return warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps))))


def fit(
    head: EagleHead, sequences: Sequences, target: TargetOutput, epochs: int, tokens: int, rate: float, out: Path
) -> None:
    """AdamW with warm-up and a cosine; the head is saved to `out` after every epoch."""
    rng = Random(0)
    rows = target.embedding[head.output_token_ids.long()]
    optimizer = torch.optim.AdamW(head.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)
    steps = epochs * sum(1 for _ in batches(sequences, tokens, Random(0)))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, steps))
    began, step, seen, shown = time.monotonic(), 0, 0, list[Sequence[float]]()
    for epoch in range(epochs):
        for batch in batches(sequences, tokens, rng):
            losses = unrolled_loss(head, batch, target, rows)
            torch.autograd.backward([weight * loss for weight, loss in zip(DEPTH_WEIGHTS, losses, strict=True)])
            nn.utils.clip_grad_norm_(head.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step, seen = step + 1, seen + batch.ids.numel()
            shown.append([float(loss.detach()) for loss in losses])
            if step % 20 == 0:
                means = " ".join(f"{sum(column) / len(column):.3f}" for column in zip(*shown, strict=True))
                speed = seen / (time.monotonic() - began)
                print(f"epoch {epoch} step {step}/{steps} loss by depth {means} {speed:.0f} tokens/s", flush=True)
                shown = []
        save_head(head, out)


def main() -> None:
    """Train from the target's last layer, or go on from an exported head with `--start`."""
    parser = argparse.ArgumentParser(prog="python -m engine.draft_training.train", description=__doc__)
    parser.add_argument("--features", type=Path, default=Path("train/features"), help="folder of shards")
    parser.add_argument("--out", type=Path, required=True, help="folder to write config.json and model.safetensors to")
    parser.add_argument("--start", type=Path, help="exported head to go on from")
    parser.add_argument("--epochs", type=int, default=4, help="0 writes the untrained head")
    parser.add_argument("--outputs", type=int, default=6144, help="tokens the head can propose")
    parser.add_argument("--batch", type=int, default=2048, help="tokens in a batch")
    parser.add_argument("--rate", type=float, default=1e-3, help="highest learning rate")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    folder = fetch_smollm2()
    target, sequences = TargetOutput(folder), load_features(options.features)
    counts = token_counts(sequences, len(target.embedding))
    print(f"{len(sequences)} sequences, {sum(len(one['ids']) for one in sequences)} tokens")
    if options.start:  # no weight belongs to an output, so they may be chosen anew
        head = blank_head(target, sequences, options.outputs)
        head.load_state_dict(dict(load_head(options.start).named_parameters()), strict=False)
    else:
        head = initial_head(folder, target, sequences, options.outputs)
    covered = float(counts[head.output_token_ids.long()].sum() / counts.sum())
    print(f"{head.config.output_size} outputs cover {covered:.2%} of the text", flush=True)
    save_head(head, options.out)
    fit(head, sequences, target, options.epochs, options.batch, options.rate, options.out)


if __name__ == "__main__":
    main()
