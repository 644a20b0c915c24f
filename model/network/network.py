"""The network: from the features of a batch to the joint law of its futures.

Residual blocks turn the features of each indicator into a token. Attention mixes the tokens along the hierarchy of the
indicators. One head, shared by all steps, gives the parameters of the law.

Letters of shapes: B rows, N indicators, H steps, K candidates or knots, D width of a token, A atoms.
Source of the attention: Y. Luo et al., "HARMONY", arXiv 2408.01000.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, softplus

from model.network.atoms import MAX_RANKED_ATOMS, NUM_ATOM_FEATURES, NUM_PLACES, Atoms, places
from model.network.candidates import NUM_CANDIDATES, NUM_SCALES, NUM_UNSEASONAL
from model.network.features import NUM_CALENDAR, NUM_FEATURES, Features
from model.network.law import (
    MIDDLE,
    NUM_COEFFICIENTS,
    NUM_KNOTS,
    NUM_STRIDES,
    JointLaw,
    Marginal,
    Spline,
    knot_positions,
)
from model.network.layers import ALIGNED, IndicatorAttention, RowLinear, ranks, visible
from model.network.spec import MAX_HORIZON, NetworkSpec

_NUM_LEVELS = 8
_OUTPUTS = (NUM_CANDIDATES, 1, NUM_SCALES, 1, NUM_KNOTS - 1, NUM_KNOTS, 1, NUM_COEFFICIENTS)
_SOFTPLUS_INVERSE_OF_ONE = 0.5413248546  # log(e - 1)
_SHORT_BAND_STEPS = 3.0  # over which the short band of errors gives way to the long one
_SEASON_TRUST = 8.0  # in the hindcast of earlier days, as far as it exceeds the margin
_SEASON_MARGIN = 1.4  # log 4: without a season the error was four times that of the day before
_LONG_STRIDES = 2  # from this power of two on, steps are mixed by the correlation of long changes


class Network(nn.Module):
    """Tokens from features, cascading attention, and one head for all steps.

    Args:
        spec: shape of the network.
    """

    def __init__(self, spec: NetworkSpec) -> None:
        super().__init__()
        self.spec = spec
        self.enter = RowLinear(NUM_FEATURES, spec.hidden)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(spec.hidden),
                RowLinear(spec.hidden, spec.hidden),
                nn.GELU(),
                RowLinear(spec.hidden, spec.hidden),
            )
            for _ in range(spec.num_blocks)
        )
        self.to_token = nn.Sequential(nn.LayerNorm(spec.hidden), RowLinear(spec.hidden, spec.width))
        self.level = nn.Embedding(_NUM_LEVELS, spec.width)
        self.calendar = RowLinear(NUM_CALENDAR, spec.width)
        self.attention = nn.ModuleList(
            IndicatorAttention(spec.width, spec.num_heads) for _ in range(spec.num_attention)
        )
        self.leave = nn.LayerNorm(spec.width)
        self.latents = RowLinear(spec.width, MAX_HORIZON * spec.latents)
        self.head = nn.Sequential(
            RowLinear(spec.latents + 3 * NUM_CANDIDATES + NUM_SCALES + 2, spec.head_hidden),
            nn.GELU(),
            RowLinear(spec.head_hidden, spec.head_hidden),
            nn.GELU(),
            RowLinear(spec.head_hidden, sum(_OUTPUTS)),
        )
        self.trust = nn.Parameter(torch.ones(NUM_CANDIDATES))  # in a candidate's errors in context
        self.mixing = RowLinear(spec.width, NUM_STRIDES)
        self.atom = nn.Sequential(RowLinear(NUM_ATOM_FEATURES + 1, 16), nn.GELU(), RowLinear(16, 1))
        self.atom_state = RowLinear(spec.width, NUM_ATOM_FEATURES)
        self.atom_place = RowLinear(spec.width, NUM_PLACES + MAX_RANKED_ATOMS) if spec.places else None
        with torch.no_grad():
            weight, bias = self.head[-1].parameters()
            weight.mul_(0.1)
            bias.zero_()
            bias[sum(_OUTPUTS[:6])] = -2.0  # atoms start with little mass
            self.mixing.bias.fill_(1.0)
            self.level.weight.mul_(0.1)
            if self.atom_place is not None:  # places say nothing until something is learned of them
                self.atom_place.weight.zero_()
                self.atom_place.bias.zero_()

    def forward(self, features: Features, horizon: int = MAX_HORIZON, tokens: Tensor | None = None) -> JointLaw:
        """The joint law of the next `horizon` steps.

        Args:
            features: of the batch, with candidates for at least `horizon` steps.
            tokens: [B, N, D], the output of `tokens` for these features; None computes them.
        """
        tokens = self.tokens(features) if tokens is None else tokens
        outputs = torch.split(self._steps(tokens, features, horizon), list(_OUTPUTS), dim=-1)
        marginal = self._marginal(tokens, features, outputs, horizon)
        share = torch.sigmoid(self.mixing(tokens)).transpose(1, 2) * 0.98  # [B, 7, N]
        kind = [0 if stride < _LONG_STRIDES else 1 for stride in range(NUM_STRIDES)]
        correlation = torch.stack([features.correlation[:, k] for k in kind], dim=1)  # [B, 7, N, N]
        mixed = correlation * share[..., :, None] * share[..., None, :]
        n = share.shape[-1]
        mixed = mixed - torch.diag_embed(mixed.diagonal(dim1=-2, dim2=-1))
        room = -n % ALIGNED  # a factorisation, too, may round by alignment
        mixed = pad(mixed, (0, room, 0, room)) + torch.eye(n + room, device=share.device)
        root = torch.linalg.cholesky_ex(mixed)[0][..., :n, :n].contiguous()
        return JointLaw(marginal, outputs[7], root, features.context)

    def head_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the layers that read a token: a twentieth of the work, and what differs between workloads.

        With `spec.places` the weights of the atoms are adapted by their places only. Numbers of atoms that an item has
        not shown then keep the weights they had.
        """
        atoms = (self.atom, self.atom_state) if self.atom_place is None else (self.atom_place,)
        for part in (self.latents, self.head, *atoms):
            yield from part.parameters()
        yield self.trust

    def tokens(self, features: Features) -> Tensor:
        """Tokens after attention [B, N, D]."""
        x = self.enter(features.tokens)
        for block in self.blocks:
            x = x + block(x)
        rank = ranks(features.levels).clamp(max=_NUM_LEVELS - 1)
        tokens = self.to_token(x) + self.level(rank)
        calendar = self.calendar(features.calendar)[:, None]
        b = tokens.shape[0]
        tokens = torch.cat((calendar, tokens), dim=1)  # the calendar belongs to the first level
        mask = visible(torch.cat((features.levels.amin()[None], features.levels)), self.spec.attention)
        first = torch.ones(b, 1, dtype=torch.bool, device=tokens.device)
        present = torch.cat((first, features.context.moving), dim=1)
        for layer in self.attention:
            tokens = layer(tokens, mask, present)
        left: Tensor = self.leave(tokens[:, 1:])
        return left

    def _steps(self, tokens: Tensor, features: Features, horizon: int) -> Tensor:
        """Outputs of every step [B, N, H, O]."""
        b, n, _ = tokens.shape
        latents = self.latents(tokens).view(b, n, MAX_HORIZON, -1)[:, :, :horizon]
        z = features.candidates.z[..., :horizon].transpose(2, 3)  # [B, N, H, K]
        offered = features.candidates.offered[..., :horizon].transpose(2, 3)
        scales = features.candidates.scales
        size = scales.log().mean(-1, keepdim=True).exp()[:, :, None]
        relative = torch.asinh((z - z[..., :1]) / (3 * size)) * offered
        step = torch.arange(1, horizon + 1, device=z.device, dtype=z.dtype)
        steps = torch.stack((step.log() / 4, step / MAX_HORIZON), dim=-1).expand(b, n, -1, -1)
        spread = scales.log()[:, :, None].expand(-1, -1, horizon, -1)
        errors = _interpolate_bands(features.candidates.evidence, step)
        out: Tensor = self.head(torch.cat((latents, relative, offered.to(z.dtype), errors, spread, steps), dim=-1))
        gate = out[..., :NUM_CANDIDATES] - self.trust * errors
        passed = _SEASON_TRUST * (features.candidates.hindcast[..., :horizon] - _SEASON_MARGIN).clamp(min=0)
        gate = torch.cat((gate[..., :NUM_UNSEASONAL] - passed[..., None], gate[..., NUM_UNSEASONAL:]), dim=-1)
        return torch.cat((gate, out[..., NUM_CANDIDATES:]), dim=-1)

    def _marginal(self, tokens: Tensor, features: Features, outputs: tuple[Tensor, ...], horizon: int) -> Marginal:
        gate, shift, scale_gate, scale_shift, increments, slopes, mass, _ = outputs
        z = features.candidates.z[..., :horizon].transpose(2, 3)
        offered = features.candidates.offered[..., :horizon].transpose(2, 3)
        location = (gate.masked_fill(~offered, -torch.inf).softmax(-1) * z).sum(-1)
        log_scale = (scale_gate.softmax(-1) * features.candidates.scales.log()[:, :, None]).sum(-1)
        scale = torch.exp(log_scale + scale_shift[..., 0].clamp(-6, 6))
        location = location + shift[..., 0] * scale
        x = knot_positions(z.device).to(z.dtype)
        if self.spec.marginal == "gaussian":
            increments, slopes = torch.zeros_like(increments), torch.zeros_like(slopes)
        steepness = softplus(increments + _SOFTPLUS_INVERSE_OF_ONE) + 1e-3  # [B, N, H, K - 1]
        rise = torch.cumsum(steepness * x.diff(), dim=-1)
        knots = torch.cat((torch.zeros_like(rise[..., :1]), rise), dim=-1)
        knots = knots - knots[..., MIDDLE : MIDDLE + 1]
        around = torch.cat((steepness[..., :1], steepness, steepness[..., -1:]), dim=-1)
        slope = (around[..., 1:] * around[..., :-1]).sqrt() * torch.exp(1.5 * slopes.tanh())
        if self.spec.marginal == "spline":
            knots, slope = _shorten_tails(knots, slope, self.spec.tail)
        spline = Spline(x, location[..., None] + scale[..., None] * knots, scale[..., None] * slope)
        weights = self._atom_weights(tokens, features)
        some = features.atoms.valid.any(-1, keepdim=True) & (self.spec.marginal == "spline")
        return Marginal(
            spline,
            torch.sigmoid(mass[..., 0]).clamp(max=0.98) * some,
            features.atoms.z,
            weights,
            features.atoms.width,
        )

    def _atom_weights(self, tokens: Tensor, features: Features) -> Tensor:
        atoms = features.atoms
        state = self.atom_state(tokens)[:, :, None]  # [B, N, 1, 3]
        own = self.atom(torch.cat((atoms.features, atoms.z[..., None].tanh()), dim=-1))[..., 0]
        scores = own + atoms.features[..., 0] + (state * atoms.features).sum(-1)
        if self.atom_place is not None:
            scores = scores + _place_scores(self.atom_place(tokens), atoms)
        scores = scores.masked_fill(~atoms.valid, -1e9)
        weights: Tensor = scores.softmax(-1) * atoms.valid
        return weights


def with_places(network: Network) -> Network:
    """A copy whose atoms have weights by place; it forecasts as before until these weights are trained."""
    learned = Network(replace(network.spec, places=True))
    learned.load_state_dict(network.state_dict(), strict=False)
    return learned.train(network.training)


def _place_scores(learned: Tensor, atoms: Atoms) -> Tensor:
    """Terms added to the scores of the atoms [B, N, A]: one per place, and one per share of the rows.

    Args:
        learned: [B, N, 64 + 8], a score per place, then a weight of the share per number of atoms.
        atoms: A per token.
    """
    place, few = places(atoms)
    level, share = (pad(part, (0, 1)) for part in torch.split(learned, [NUM_PLACES, MAX_RANKED_ATOMS], dim=-1))
    return level.gather(-1, place) + share.gather(-1, few) * atoms.features[..., 0]


def _interpolate_bands(evidence: Tensor, step: Tensor) -> Tensor:
    """Log errors of the candidates at each step [B, N, H, K], interpolated between the short and the long band."""
    short = torch.exp((1 - step) / _SHORT_BAND_STEPS)[:, None]
    return evidence[:, :, None, :, 0] * short + evidence[:, :, None, :, 1] * (1 - short)


def _shorten_tails(knots: Tensor, slope: Tensor, tail: float) -> tuple[Tensor, Tensor]:
    """Knots and slopes whose outermost intervals and straight tails are shortened to the share `tail`."""
    low = knots[..., 1:2] - tail * (knots[..., 1:2] - knots[..., :1])
    high = knots[..., -2:-1] + tail * (knots[..., -1:] - knots[..., -2:-1])
    return (
        torch.cat((low, knots[..., 1:-1], high), dim=-1),
        torch.cat((tail * slope[..., :1], slope[..., 1:-1], tail * slope[..., -1:]), dim=-1),
    )
