"""Several networks of one shape on the same bags, trained as one.

Eight bags of short vectors are a few hundred rows: most of a step's time is the hundreds of small operations
that it is made of, not arithmetic. With a leading dimension of e networks the same operations do e times the
work. All of the forward pass is one operation with its gradient in closed form: attention is a dense matrix
A (b, n), zero outside each bag, so that a softmax of rows weighs instances and a product with H (n, L) sums
them. Values and gradients are those of `BagNetwork`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mipl.nn.attention import DAM, MAM, SAM, Attention, GatedScore
from mipl.nn.encoders import Dropout, FeatureEncoder, Standardize
from mipl.nn.heads import SigmoidHead
from mipl.nn.network import BagNetwork, Output, from_even, is_background


def can_be_member(net: nn.Module) -> bool:
    """Return whether a network is made of the parts that are computed here: it has feature vectors."""
    return (
        type(net) is BagNetwork
        and isinstance(net.scaling, Standardize)
        and type(net.encoder) is FeatureEncoder
        and type(net.score) is GatedScore
        and not net.score.shared_gate
        and (
            isinstance(net.attention, DAM | SAM)
            or (isinstance(net.attention, MAM) and net.attention.order == "scores")
        )
    )


class Members(nn.Module):
    """Instances (n, d) and sizes (b,), the same for all e networks -> logits (e·b, k)."""

    def __init__(self, nets: Sequence[BagNetwork], background: bool = True) -> None:
        super().__init__()
        self.background = background  # whether its logits are asked for
        self._nets = list(nets)  # in a list: not its own modules
        self.stacked = nn.ParameterList(
            nn.Parameter(torch.stack([p.detach() for p in same]))
            for same in zip(*map(layer_parameters, nets), strict=True)
        )
        self.scaling = nets[0].scaling
        self.attention = nets[0].attention
        self.dropout = nets[0].encoder[2]  # type: ignore[index]
        self.sigmoid = isinstance(nets[0].head, SigmoidHead)

    def forward(self, instances: Tensor, sizes: Tensor) -> Output:
        """Return logits (e·b, k), z (e·b, L), a (e, n), ξ (e, n) and the background's logits (e·b, k)."""
        assert isinstance(self.dropout, Dropout)
        x = self.scaling(instances)
        # one mask for all: what a unit of one network has to do with that of another is nothing
        kept, factor = self.dropout.kept(x, (len(x), self.stacked[0].shape[1]))
        values, z, weights, scores, has_rest = _Forward.apply(  # type: ignore[no-untyped-call]
            self.attention, self.background, kept, factor, x, sizes, *self.stacked
        )
        if self.sigmoid:
            values = values.sigmoid()
        b = len(sizes)
        rest = (values[:, b:] * has_rest[..., None]).flatten(0, 1) if self.background else None
        return Output(values[:, :b].flatten(0, 1), z.flatten(0, 1), weights, scores, background=rest)

    def decided(self, output: Output, sizes: Tensor) -> Tensor:
        """Return how far each bag's background is from undecided (e·b,)."""
        assert output.background is not None
        return from_even(output.background)

    def hand_back(self) -> None:
        """Give every network what it has become."""
        with torch.no_grad():
            for e, net in enumerate(self._nets):
                for own, stacked in zip(layer_parameters(net), self.stacked, strict=True):
                    own.copy_(stacked[e])
                net.attention.load_state_dict(self.attention.state_dict())


def layer_parameters(net: BagNetwork) -> list[nn.Parameter]:
    """Return weight and bias of the linear layers in order: encoder, gates, score (two), head."""
    modules = (net.encoder[0], net.score.gates, net.score.score[0], net.score.score[2], net.head)  # type: ignore[index]
    return [p for module in modules for p in (module.weight, module.bias)]  # type: ignore[misc]


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        attention: Attention,
        background: bool,
        kept: Tensor | None,
        factor: float,
        x: Tensor,
        sizes: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        W1, b1, Wg, bg, W2, b2, w3, b3, Wh, bh = parameters
        # dropout's factor on what it keeps: ReLU lets it through
        h = torch.baddbmm(
            b1[:, None], x.expand(len(W1), -1, -1), W1.mT, beta=factor, alpha=factor
        ).relu_()  # (e, n, L)
        if kept is not None:
            h *= kept.to(h.dtype)
        t, s = torch.baddbmm(bg[:, None], h, Wg.mT).chunk(2, dim=2)
        t, s = t.tanh(), s.sigmoid()  # (e, n, k)
        u = t * s
        v = torch.baddbmm(b2[:, None], u, W2.mT).relu_()  # (e, n, 128)
        scores = torch.baddbmm(b3[:, None], v, w3.mT).squeeze(2)  # ξ (e, n), Eq. 7
        inside = _inside(sizes, x)  # (b, n)
        slope: Tensor | float  # of what is put through the softmax, with respect to ξ
        ctx.bags, ctx.sizes = None, None
        if isinstance(attention, DAM):
            raised, slope = nn.functional.logsigmoid(scores), torch.sigmoid(-scores)
        elif isinstance(attention, SAM):
            raised, slope = scores * attention.scale, attention.scale
        else:
            assert isinstance(attention, MAM)
            ctx.bags, ctx.sizes = inside.to(x.dtype), sizes[:, None].to(x.dtype)
            centred = _centre(scores, ctx.bags, ctx.sizes)
            variance = ctx.bags @ (centred * centred)[..., None] / (ctx.sizes - 1).clamp(min=1)  # (e, b, 1)
            slope = _spread(attention.scale / attention.tau / (variance.sqrt() + attention.EPS), ctx.bags)
            raised = centred * slope
        A = torch.where(inside, raised[:, None], -torch.inf).softmax(dim=2)
        # the rows of P weigh instances: those of A first, then those that average the background
        P, has_rest = A, A.new_zeros(0)
        if background:
            rest = (inside & is_background(A, sizes[:, None])).to(A.dtype)
            count = rest.sum(dim=2)  # (e, b)
            P, has_rest = torch.cat([A, rest / count.clamp(min=1)[..., None]], dim=1), count.clamp(max=1)
        z = P @ h  # Eq. 13
        ctx.slope, ctx.factor, ctx.b = slope, factor, len(sizes)
        ctx.save_for_backward(x, h, t, s, u, v, P, z, Wg, W2, w3, Wh)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(has_rest)
        return torch.baddbmm(bh[:, None], z, Wh.mT), z[:, : len(sizes)], A.sum(dim=1), scores, has_rest

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, h, t, s, u, v, P, z, Wg, W2, w3, Wh = ctx.saved_tensors
        of_values, of_z, of_weights, of_scores, _ = grads
        b = ctx.b
        if of_values is None:
            of_values = z.new_zeros((*z.shape[:2], Wh.shape[1]))
        gz = of_values @ Wh  # (e, b or 2b, L)
        if of_z is not None:
            gz[:, :b] += of_z
        A = P[:, :b]
        gA = gz[:, :b] @ h.mT  # (e, b, n)
        if of_weights is not None:
            gA += of_weights[:, None]  # outside its bag A is 0, and so is what follows
        gA *= A
        g = (gA - A * gA.sum(dim=2, keepdim=True)).sum(dim=1) * ctx.slope  # (e, n)
        if ctx.bags is not None:
            g = _centre(g, ctx.bags, ctx.sizes)
        if of_scores is not None:
            g = g + of_scores
        gv = _through_relu(g[..., None] * w3, v)  # (e, n, 128)
        gu = (W2.mT @ gv.mT).mT  # (e, n, k)
        gg = torch.cat([gu * s * (1 - t * t), gu * u * (1 - s)], dim=2)  # (e, n, 2k)
        # what was dropped is 0 in h, as what ReLU cut off
        gh = _through_relu(torch.baddbmm(P.mT @ gz, gg, Wg), h)
        # products of few rows and many columns rather than the reverse: they are faster
        return (
            *(None,) * 6,
            *(ctx.factor * (gh.mT @ x), ctx.factor * gh.sum(dim=1)),
            *(gg.mT @ h, gg.sum(dim=1)),
            *((u.mT @ gv).mT, gv.sum(dim=1)),
            *(g[:, None] @ v, g.sum(dim=1, keepdim=True)),
            *(of_values.mT @ z, of_values.sum(dim=1)),
        )


def _inside(sizes: Tensor, rows: Tensor) -> Tensor:
    """Return which of rows (n, …) are of which bag, (b, n)."""
    ends = sizes.cumsum(dim=0)[:, None]
    place = torch.arange(len(rows), device=rows.device)
    return (place < ends) & (place >= ends - sizes[:, None])


def _centre(scores: Tensor, bags: Tensor, sizes: Tensor) -> Tensor:
    """Subtract from scores (e, n) the mean of their bag, bags (b, n) of 0 and 1, sizes (b, 1)."""
    return scores - _spread(bags @ scores[..., None] / sizes, bags)


def _spread(values: Tensor, bags: Tensor) -> Tensor:
    """Give every instance the value of its bag: (e, b, 1), (b, n) -> (e, n)."""
    return (bags.mT @ values).squeeze(2)


def _through_relu(gradient: Tensor, output: Tensor) -> Tensor:
    """Return the gradient where ReLU's output is above 0, and 0 elsewhere."""
    passed: Tensor = torch.ops.aten.threshold_backward(gradient, output, 0)
    return passed
