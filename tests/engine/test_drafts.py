"""What each draft proposes, against the definition of the draft."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.core import ModelError, SamplingParams
from engine.core.drafts import Ask, DecoderDraft, EagleDraft, NgramDraft, Proposal
from engine.core.drafts.ngram import NgramIndex
from engine.core.layout import Segment
from engine.core.model import Decoder
from engine.core.sampling import Filters, distribution
from engine.draft_training.export import load_head
from tests.engine.conftest import VOCABULARY, write_eagle, write_qwen2

CPU = torch.device("cpu")
GREEDY = SamplingParams()


def decoder(folder: Path, max_len: int = 64) -> Decoder:
    return Decoder(folder, dtype=torch.float32, device=CPU, max_len=max_len)


def proposed(proposal: Proposal) -> list[list[int]]:
    return [row[:n] for row, n in zip(proposal.tokens.tolist(), proposal.counts, strict=True)]


def search(tokens: Sequence[int], k: int) -> list[int]:
    """Prompt lookup by its definition, scanning backwards."""
    for n in (3, 2, 1):
        suffix = list(tokens[-n:])
        for end in range(len(tokens) - 1, n - 1, -1):
            if len(tokens) > n and list(tokens[end - n : end]) == suffix:
                out = list(tokens)
                for i in range(k):
                    out.append(out[end + i])
                return out[len(tokens) :]
    return []


def test_ngram_finds_the_latest_occurrence_of_the_longest_suffix() -> None:
    rng = random.Random(0)
    for _ in range(200):
        index, tokens = NgramIndex(), [rng.randrange(4) for _ in range(rng.randint(1, 8))]
        for _ in range(10):
            k = rng.randint(1, 7)
            assert index.continuation(tokens, k) == search(tokens, k)
            tokens += [rng.randrange(4) for _ in range(rng.randint(1, 4))]


def test_ngram_continues_a_repeating_pattern_beyond_its_end() -> None:
    assert NgramIndex().continuation([7, 1, 2, 1, 2, 1, 2], 5) == [1, 2, 1, 2, 1]


def test_ngram_proposes_nothing_for_a_new_token_and_less_for_nobody_else() -> None:
    draft = NgramDraft(CPU, 100)
    asks = [Ask(draft.admit(), t, 3, GREEDY) for t in ([1, 2, 3], [1, 2, 1], [4])]
    proposal = draft.propose(asks)
    assert proposed(proposal) == [[], [2, 1, 2], []]
    assert (proposal.passes, proposal.source) == (3, None)
    assert proposed(draft.propose([Ask(draft.admit(), [4], 3, GREEDY)])) == [[]]


@torch.inference_mode()
def continue_greedily(model: Any, tokens: Sequence[int], k: int, size: int) -> list[int]:
    ids = list(tokens)
    for _ in range(k):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1, :size].argmax()))
    return ids[len(tokens) :]


def test_a_decoder_draft_continues_greedily_however_far_it_lags(draft_folder: Path) -> None:
    reference = AutoModelForCausalLM.from_pretrained(draft_folder, dtype=torch.float32)
    size = VOCABULARY - 8
    draft = DecoderDraft(decoder(draft_folder), 3, VOCABULARY)
    rng = random.Random(1)
    states = [draft.admit() for _ in range(3)]
    rows = [[rng.randrange(size) for _ in range(n)] for n in (4, 9, 1)]
    with torch.inference_mode():
        for turn in range(6):
            members = [i for i in range(3) if (turn + i) % 3]  # each row sits out every third turn
            ks = [rng.randint(1, 4) for _ in members]
            asks = [Ask(states[i], rows[i], k, GREEDY) for i, k in zip(members, ks, strict=True)]
            answers = proposed(draft.propose(asks))
            for i, k, answer in zip(members, ks, answers, strict=True):
                assert answer == continue_greedily(reference, rows[i], k, size)
                kept = rng.randint(0, k)  # all of them now and then: the last one was never fed
                rows[i] += [*answer[:kept], rng.randrange(size)]
                draft.rollback(states[i], len(rows[i]) - 1)


def test_a_decoder_draft_samples_from_its_own_filtered_distribution(draft_folder: Path) -> None:
    draft = DecoderDraft(decoder(draft_folder), 2, VOCABULARY)
    model = decoder(draft_folder)
    params = SamplingParams(temperature=0.7, top_k=20, top_p=0.9)
    tokens = [5, 6, 7, 8]
    with torch.inference_mode():
        asks = [Ask(draft.admit(), tokens, 2, params, (0.3, 0.8)), Ask(draft.admit(), tokens, 1, GREEDY)]
        proposal = draft.propose(asks)
        cache = model.cache(1)
        cache.acquire()
        ids = [*tokens, proposed(proposal)[0][0]]
        hidden = model.forward(torch.tensor(ids), model.layout([Segment(0, 0, 5)], cache), cache)
        expected = distribution(model.logits(hidden[3:]), Filters([0.7] * 2, [20] * 2, [0.9] * 2))
    source = proposal.source
    assert source is not None
    torch.testing.assert_close(source.values[0], expected, rtol=1e-4, atol=1e-6)
    picked = proposal.tokens[0]
    torch.testing.assert_close(source.chance[0], expected.gather(1, picked[:, None])[:, 0], rtol=1e-4, atol=1e-6)
    # The uniforms lie inside the picked tokens' steps of the distribution functions.
    reach = expected.cumsum(-1)
    for i, u in enumerate((0.3, 0.8)):
        assert float(reach[i, picked[i]]) >= u > float(reach[i, picked[i]] - expected[i, picked[i]])


def test_long_backlogs_enter_in_chunks(draft_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.core.drafts.decoder.CATCH_UP_CHUNK", 8)
    whole, pieces = (DecoderDraft(decoder(draft_folder), 1, VOCABULARY) for _ in range(2))
    tokens = [i % 50 for i in range(30)]
    with torch.inference_mode():
        chunked = pieces.propose([Ask(pieces.admit(), tokens, 2, GREEDY)])
        monkeypatch.setattr("engine.core.drafts.decoder.CATCH_UP_CHUNK", 64)
        at_once = whole.propose([Ask(whole.admit(), tokens, 2, GREEDY)])
    assert proposed(chunked) == proposed(at_once)
    assert (chunked.passes, at_once.passes) == (5, 2)  # 8 + 8 + 8, then 6 and one token


class Target:
    """The tiny llama feeding an eagle draft as the engine does: hidden states of what it has read."""

    def __init__(self, folder: Path, head: Path) -> None:
        self.model = decoder(folder)
        self.draft = EagleDraft(head, self.model, slots=3)
        self.head = load_head(head)

    def hidden(self, tokens: Sequence[int]) -> torch.Tensor:
        cache = self.model.cache(1)
        cache.acquire()
        layout = self.model.layout([Segment(0, 0, len(tokens))], cache)
        return self.model.forward(torch.tensor(tokens), layout, cache)

    def reference(self, tokens: Sequence[int], k: int) -> list[int]:
        """The definition: the training code's head, unrolled; the chain that begins at the last true index."""
        ids = list(tokens)
        true = self.hidden(tokens[:-1])
        for depth in range(1, k + 1):
            # Index j takes the embedding of token j + 1; h beyond the true ones is the head's own output.
            embedded = F.embedding(torch.tensor(ids[1:]), self.model.embedding)[None]
            padded = F.pad(true, (0, 0, 0, depth - 1))[None]
            out = self.head(embedded, padded, depth)[-1][0, -1:]
            logits = self.model.norm(out) @ self.model.embedding[self.head.output_token_ids.long()].T
            ids.append(int(self.head.output_token_ids[logits.argmax()]))
        return ids[len(tokens) :]


def test_an_eagle_draft_is_the_training_codes_head_run_step_by_step(llama: Path, eagle: Path) -> None:
    target = Target(llama, eagle)
    rng = random.Random(2)
    states = [target.draft.admit() for _ in range(3)]
    rows = [[rng.randrange(VOCABULARY) for _ in range(n)] for n in (5, 12, 2)]
    handed = [0, 0, 0]
    with torch.inference_mode():
        for turn in range(6):
            for i in range(3):  # hidden states of all but the last token, and of rejected ones that must go again
                hidden = target.hidden([*rows[i][:-1], 3, 4])
                target.draft.observe(states[i], hidden[handed[i] :])
                target.draft.rollback(states[i], len(rows[i]) - 1)
                handed[i] = len(rows[i]) - 1
            members = [i for i in range(3) if (turn + i) % 3]
            ks = [rng.randint(1, 4) for _ in members]
            asks = [Ask(states[i], rows[i], k, GREEDY) for i, k in zip(members, ks, strict=True)]
            answers = proposed(target.draft.propose(asks))
            for i, k, answer in zip(members, ks, answers, strict=True):
                assert answer == target.reference(rows[i], k)
            for i in range(3):
                rows[i] += [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 3))]


def test_an_eagle_drafts_long_backlogs_enter_in_chunks(
    llama: Path, eagle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(llama, eagle)
    tokens = [i % 50 for i in range(31)]
    answers = []
    with torch.inference_mode():
        for chunk in (64, 8):
            monkeypatch.setattr("engine.core.drafts.eagle.CATCH_UP_CHUNK", chunk)
            state = target.draft.admit()
            target.draft.observe(state, target.hidden(tokens[:-1]))
            answers.append(target.draft.propose([Ask(state, tokens, 2, GREEDY)]))
    assert proposed(answers[0]) == proposed(answers[1])
    assert [a.passes for a in answers] == [2, 5]  # 30 entries: 8 + 8 + 8, then 6 and one token


def test_an_eagle_drafts_distribution_ranges_over_its_own_tokens(llama: Path, eagle: Path) -> None:
    target = Target(llama, eagle)
    with torch.inference_mode():
        state = target.draft.admit()
        target.draft.observe(state, target.hidden([5, 6, 7]))
        ask = Ask(state, [5, 6, 7, 8], 3, SamplingParams(temperature=1.0), (0.1, 0.5, 0.9))
        proposal = target.draft.propose([ask])
    source = proposal.source
    assert source is not None
    assert source.support is not None
    torch.testing.assert_close(source.values.sum(-1), torch.ones(1, 3))
    assert set(proposal.tokens[0].tolist()) <= set(source.support.tolist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 999}, "vocab_size of the eagle draft is 999; this target needs 320"),
        ({"hidden_size": 24}, "hidden_size of the eagle draft is 24; this target needs 48"),
        ({"rope_theta": 5.0}, r"rope_theta of the eagle draft is 5\.0; this target needs 10000\.0"),
    ],
)
def test_an_eagle_draft_of_another_target_is_refused(
    changes: dict[str, Any], message: str, llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        EagleDraft(write_eagle(tmp_path, **changes), decoder(llama), slots=1)


def test_a_damaged_eagle_folder_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = write_eagle(tmp_path)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "output_size": None}))
    with pytest.raises(ModelError, match="output_size of the eagle draft is None"):
        EagleDraft(folder, decoder(llama), slots=1)
    (folder / "config.json").write_text(json.dumps(settings))
    tensors = load_file(folder / "model.safetensors")
    tensors["output_token_ids"][-1] = VOCABULARY
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=r"output_token_ids of .* leave the target's vocabulary of 320"):
        EagleDraft(folder, decoder(llama), slots=1)


def test_an_eagle_head_may_sit_on_a_target_with_biases(tmp_path: Path) -> None:
    target = decoder(write_qwen2(tmp_path / "qwen2"))
    draft = EagleDraft(write_eagle(tmp_path / "head"), target, slots=1)
    assert draft.memory_bytes > 0
