"""One step's tensors: draft, one pass of the target over everything, verdict, and a single read-back to the host."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from engine.core.cache import KVCache
from engine.core.drafts.draft import Ask, Draft, Proposal
from engine.core.layout import Layout, Segment
from engine.core.model import Decoder
from engine.core.request import Request
from engine.core.sampling import Filters, best, distribution, draw
from engine.core.scheduler import Batch
from engine.core.speculation import DraftDistribution, certain, verify, verify_greedy


class Emission(NamedTuple):
    """What the step decided for a request: `asked` tokens of its draft, which may have offered none, the first `kept`
    of them kept, `tokens` = those and the one that follows."""

    request: Request
    asked: int
    kept: int
    tokens: list[int]


class StepResult(NamedTuple):
    """`decoded`: the decode rows; `begun`: prompts completed, with their first token. `drafted`: per draft that ran,
    (tokens asked for, passes). Asked, not offered: a policy can only choose what to ask for, so that is what its price
    and its yield must be booked under (a draft that offers nothing makes a cheap step with nothing accepted). `read`:
    tokens that drafts read because they were not asked for long."""

    decoded: list[Emission]
    begun: list[Emission]
    drafted: Mapping[str, tuple[int, int]]
    read: int = 0


class _Row(NamedTuple):
    """A request in the flat pass: `size` tokens, the last `k` of them draft tokens."""

    request: Request
    k: int
    size: int


class Runner:
    """Runs batches of the scheduler on the target and its drafts. Called from the decode thread only."""

    def __init__(self, target: Decoder, cache: KVCache, drafts: Mapping[str, Draft]) -> None:
        self._target = target
        self._cache = cache
        self._names = {id(draft): name for name, draft in drafts.items()}
        self._observers = {name: draft for name, draft in drafts.items() if draft.needs_hidden}

    @torch.inference_mode()
    def run(self, batch: Batch) -> StepResult:
        """Draft, verify and sample. Cache rows and draft states hold the kept tokens afterwards, requests do not yet:
        the caller takes `tokens` over and rolls back what a stop cut off."""
        proposals = self._draft(batch)
        counts = {r.number: n for p, asked in proposals for r, n in zip(asked, p.counts, strict=True)}
        rows = [_Row(r, counts.get(r.number, 0), counts.get(r.number, 0) + 1) for r, _, _ in batch.decodes]
        rows += [_Row(r, 0, count) for r, count, _ in batch.prefills]
        rows.sort(key=lambda row: _slot(row.request))
        layout = self._target.layout([Segment(_slot(r), _length(r), n) for r, _, n in rows], self._cache)
        ids = self._ids(rows, layout, proposals)
        hidden = self._target.forward(ids, layout, self._cache)
        for (request, _, count), offset in zip(rows, layout.offsets, strict=True):
            if request.row is not None:
                request.row.length += count
            for name, draft in self._observers.items():
                draft.observe(request.draft_states[name], hidden[offset : offset + count])
        begins = {r.number for r, _, last in batch.prefills if last}
        decodes = {r.number for r, _, _ in batch.decodes}
        emitted = self._sample(rows, layout, hidden, proposals, begins | decodes)
        asked = {request.number: k for request, k, _ in batch.decodes}
        emitted = [e._replace(asked=asked.get(e.request.number, 0)) for e in emitted]
        drafted = {
            self._names[id(group[0].draft)]: (
                sum(asked[request.number] for request in group),
                max(asked[request.number] for request in group),
            )
            for _, group in proposals
        }
        return StepResult(
            [e for e in emitted if e.request.number in decodes],
            [e for e in emitted if e.request.number in begins],
            drafted,
            sum(proposal.read for proposal, _ in proposals),
        )

    def _draft(self, batch: Batch) -> list[tuple[Proposal, list[Request]]]:
        """Ask every draft for its requests' tokens."""
        asking: dict[int, list[tuple[Request, int]]] = {}
        for request, k, _ in batch.decodes:
            if k:
                asking.setdefault(id(request.draft), []).append((request, k))
        answers = []
        for group in asking.values():
            asks = []
            name = self._names[id(group[0][0].draft)]
            for request, k in group:
                luck = request.luck(k) if request.params.temperature > 0 else ()
                asks.append(Ask(request.draft_states[name], request.tokens, k, request.params, luck))
            answers.append((group[0][0].draft.propose(asks), [request for request, _ in group]))
        return answers

    def _ids(self, rows: Sequence[_Row], layout: Layout, proposals: Sequence[tuple[Proposal, list[Request]]]) -> Tensor:
        """The flat token list: prompt chunks, and each row's last token followed by its draft tokens."""
        flat: list[int] = []
        for request, k, count in rows:
            start = _length(request)
            flat.extend(request.tokens[start : start + count - k])
            flat.extend([0] * k)
        device = self._target.device
        ids = torch.tensor(flat, device=device)
        offsets = {row.request.number: offset for row, offset in zip(rows, layout.offsets, strict=True)}
        for proposal, asked in proposals:
            width = proposal.tokens.shape[1]
            into: list[int] = []
            of: list[int] = []
            for n, (request, count) in enumerate(zip(asked, proposal.counts, strict=True)):
                begin = offsets[request.number] + 1
                into.extend(range(begin, begin + count))
                of.extend(range(n * width, n * width + count))
            if into:
                source = proposal.tokens.view(-1)[torch.tensor(of, device=device)]
                ids[torch.tensor(into, device=device)] = source
        return ids

    def _sample(
        self,
        rows: Sequence[_Row],
        layout: Layout,
        hidden: Tensor,
        proposals: Sequence[tuple[Proposal, list[Request]]],
        sampling: set[int],
    ) -> list[Emission]:
        """Logits where they are needed, verdicts, next tokens; then everything to the host at once."""
        device = self._target.device
        wanted: list[int] = []
        active: list[_Row] = []
        first: list[int] = []
        for row, offset in zip(rows, layout.offsets, strict=True):
            if row.request.number in sampling:
                active.append(row)
                first.append(len(wanted))
                wanted.extend(range(offset + row.size - row.k - 1, offset + row.size))
        if not active:
            return []
        if len(wanted) < layout.tokens:
            hidden = hidden.index_select(0, torch.tensor(wanted, device=device))
        logits = self._target.logits(hidden)
        place = {row.request.number: n for n, row in enumerate(active)}
        starts = torch.tensor(first, device=device)
        ks = torch.tensor([row.k for row in active], device=device)
        tokens = torch.zeros(len(active), max(row.k for row in active), dtype=torch.long, device=device)
        for proposal, asked in proposals:
            at = torch.tensor([place[r.number] for r in asked], device=device)
            tokens[at, : proposal.tokens.shape[1]] = proposal.tokens[:, : tokens.shape[1]]
        kept, following = self._judge(active, logits, starts, tokens, ks, proposals, place)
        answer = torch.cat([kept[:, None], following[:, None], tokens], dim=1).tolist()
        emitted = []
        for row, (count, token, *drafted) in zip(active, answer, strict=True):
            emitted.append(Emission(row.request, row.k, count, [*drafted[:count], token]))
        return emitted

    def _judge(
        self,
        active: Sequence[_Row],
        logits: Tensor,
        starts: Tensor,
        tokens: Tensor,
        ks: Tensor,
        proposals: Sequence[tuple[Proposal, list[Request]]],
        place: Mapping[int, int],
    ) -> tuple[Tensor, Tensor]:
        """Draft tokens kept [rows] and the token that follows them [rows]."""
        warm = [n for n, row in enumerate(active) if row.request.params.temperature > 0]
        if len(warm) < len(active):
            kept, following = verify_greedy(best(logits), starts, tokens, ks)
        else:
            kept, following = torch.zeros_like(ks), torch.zeros_like(ks)
        # Sampled rows, by the draft their tokens came from: distributions differ in what they range over.
        groups: list[tuple[list[int], DraftDistribution | None]] = []
        rest = set(warm)
        for proposal, asked in proposals:
            members = [place[r.number] for r in asked if r.params.temperature > 0]
            if members and proposal.tokens.shape[1]:
                groups.append((members, proposal.source))
                rest.difference_update(members)
        if rest:
            groups.append((sorted(rest), None))
        for members, source in groups:
            at = torch.tensor(members, device=logits.device)
            kept[at], following[at] = self._sampled(
                [active[n] for n in members], logits, starts[at], tokens[at], ks[at], source
            )
        return kept, following

    def _sampled(
        self,
        rows: Sequence[_Row],
        logits: Tensor,
        starts: Tensor,
        tokens: Tensor,
        ks: Tensor,
        source: DraftDistribution | None,
    ) -> tuple[Tensor, Tensor]:
        """The verdict for sampled rows whose draft tokens came from one draft."""
        repeats = torch.tensor([row.k + 1 for row in rows], device=logits.device)
        ends = repeats.cumsum(0)
        within = torch.arange(sum(row.k + 1 for row in rows), device=logits.device)
        flat = within + (starts - (ends - repeats)).repeat_interleave(repeats)
        params = [row.request.params for row in rows]
        filters = Filters([p.temperature for p in params], [p.top_k for p in params], [p.top_p for p in params])
        target = distribution(
            logits.index_select(0, flat), filters.rows([n for n, row in enumerate(rows) for _ in range(row.k + 1)])
        )
        width = tokens.shape[1] if source is None else source.chance.shape[1]
        tokens = tokens[:, :width]
        luck = [row.request.luck(row.k + 1) for row in rows]
        uniforms = torch.tensor([u[:-1] + [0.0] * (width - len(u) + 1) for u in luck], dtype=torch.float64).to(
            flat.device
        )
        last = torch.tensor([u[-1] for u in luck], dtype=torch.float64, device=flat.device)
        draft = certain(tokens, target.dtype) if source is None else source
        verdict = verify(target, ends - repeats, tokens, ks, draft, uniforms.view(len(rows), width))
        return verdict.kept, draw(verdict.following, last)


def _slot(request: Request) -> int:
    if request.row is None:
        raise RuntimeError(f"{request!r} runs without a cache row")
    return request.row.slot


def _length(request: Request) -> int:
    return 0 if request.row is None else request.row.length
