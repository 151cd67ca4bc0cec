"""Several networks of the same shape, trained on the same bags as one batched computation.

Eight bags of short vectors are a few hundred rows: most of the time of a step is the overhead of hundreds of
small operations. With a leading dimension of e networks, the same number of operations does e times the work.
The forward pass is a single autograd function with a closed-form gradient. Attention is a dense matrix
A (b, n) that is zero outside each bag: a softmax over its rows normalises within bags, and its product with
H (n, L) sums within bags. Values and gradients equal those of `BagNetwork`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mipl.nn.attention import DAM, MAM, SAM, Attention, GatedScore
from mipl.nn.encoders import Dropout, FeatureEncoder, Standardize
from mipl.nn.heads import SigmoidHead
from mipl.nn.network import BagNetwork, Output, is_background, kl_from_uniform


def can_be_member(net: nn.Module) -> bool:
    """Return whether a network consists of the layers that are implemented here; images are not."""
    return (
        type(net) is BagNetwork
        and isinstance(net.scaling, Standardize)
        and type(net.encoder) is FeatureEncoder
        and type(net.score) is GatedScore
        and (
            isinstance(net.attention, DAM | SAM)
            or (isinstance(net.attention, MAM) and net.attention.order == "scores")
        )
    )


class Members(nn.Module):
    """Stacked networks: instances (n, d) and sizes (b,), the same for all e networks -> logits (e·b, k).

    Args:
        nets: the networks, for which :func:`can_be_member` holds.
        background: whether to compute the logits of the background.
    """

    def __init__(self, nets: Sequence[BagNetwork], background: bool = True) -> None:
        super().__init__()
        self.background = background
        self._nets = list(nets)  # a list, so that they are not registered as submodules
        self.stacked = nn.ParameterList(
            nn.Parameter(torch.stack([p.detach() for p in same]))
            for same in zip(*map(layer_parameters, nets), strict=True)
        )
        self.scaling = nets[0].scaling
        self.attention = nets[0].attention
        self.dropout = nets[0].encoder[2]  # type: ignore[index]
        self.sigmoid = isinstance(nets[0].head, SigmoidHead)

    def forward(self, instances: Tensor, sizes: Tensor) -> Output:
        """Return logits (e·b, k), z (e·b, L), a (e, n), ξ (e, n) and background logits (e·b, k)."""
        assert isinstance(self.dropout, Dropout)
        x = self.scaling(instances)
        # one dropout mask for all networks: their units are unrelated anyway
        mask, factor = self.dropout.mask(x, (len(x), self.stacked[0].shape[1]))
        values, z, weights, scores, has_background = _Forward.apply(  # type: ignore[no-untyped-call]
            self.attention, self.background, mask, factor, x, sizes, *self.stacked
        )
        if self.sigmoid:
            values = values.sigmoid()
        b = len(sizes)
        background = (values[:, b:] * has_background[..., None]).flatten(0, 1) if self.background else None
        return Output(values[:, :b].flatten(0, 1), z.flatten(0, 1), weights, scores, background=background)

    def background_kl(self, output: Output, sizes: Tensor) -> Tensor:
        """Return KL(uniform ‖ prediction) (e·b,) for the mean feature of each bag's background instances."""
        assert output.background is not None
        return kl_from_uniform(output.background)

    def copy_to_networks(self) -> None:
        """Copy the trained parameters to the networks."""
        with torch.no_grad():
            for e, net in enumerate(self._nets):
                for own, stacked in zip(layer_parameters(net), self.stacked, strict=True):
                    own.copy_(stacked[e])
                net.attention.load_state_dict(self.attention.state_dict())


def layer_parameters(net: BagNetwork) -> list[nn.Parameter]:
    """Return weights and biases of the linear layers: encoder, gates, score (two layers), head."""
    modules = (net.encoder[0], net.score.gates, net.score.score[0], net.score.score[2], net.head)  # type: ignore[index]
    return [p for module in modules for p in (module.weight, module.bias)]  # type: ignore[misc,union-attr]


class _Forward(torch.autograd.Function):
    """Values (e, b or 2b, k), z (e, b, L), a (e, n), ξ (e, n), and which bags have a background (e, b)."""

    @staticmethod
    def forward(
        ctx: Any,
        attention: Attention,
        background: bool,
        mask: Tensor | None,
        factor: float,
        x: Tensor,
        sizes: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        W1, b1, Wg, bg, W2, b2, w3, b3, Wh, bh = parameters
        # the scale factor of dropout is applied here, because it commutes with ReLU
        rows = x.expand(len(W1), -1, -1)  # (e, n, d)
        h = torch.baddbmm(b1[:, None], rows, W1.mT, beta=factor, alpha=factor).relu_()  # (e, n, L)
        if mask is not None:
            h *= mask.to(h.dtype)
        t, s = torch.baddbmm(bg[:, None], h, Wg.mT).chunk(2, dim=2)
        t, s = t.tanh(), s.sigmoid()  # (e, n, k)
        u = t * s
        v = torch.baddbmm(b2[:, None], u, W2.mT).relu_()  # (e, n, 128)
        scores = torch.baddbmm(b3[:, None], v, w3.mT).squeeze(2)  # ξ (e, n), Eq. 7
        in_bag = _bag_masks(sizes, x)  # (b, n)
        ctx.bags, ctx.sizes = None, None
        if isinstance(attention, MAM):  # its z-scores are centred within bags, and so is their gradient
            ctx.bags, ctx.sizes = in_bag.to(x.dtype), sizes[:, None].to(x.dtype)
        logits, ctx.slope = _attention_logits(attention, scores, ctx.bags, ctx.sizes)
        A = torch.where(in_bag, logits[:, None], -torch.inf).softmax(dim=2)
        # rows of P are weights of instances: first the attention A, then the means over the background
        P, has_background = A, A.new_zeros(0)
        if background:
            ignored = (in_bag & is_background(A, sizes[:, None])).to(A.dtype)
            count = ignored.sum(dim=2)  # (e, b)
            P = torch.cat([A, ignored / count.clamp(min=1)[..., None]], dim=1)
            has_background = count.clamp(max=1)
        z = P @ h  # Eq. 13
        ctx.factor, ctx.b = factor, len(sizes)
        ctx.save_for_backward(x, h, t, s, u, v, P, z, Wg, W2, w3, Wh)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(has_background)
        return torch.baddbmm(bh[:, None], z, Wh.mT), z[:, : len(sizes)], A.sum(dim=1), scores, has_background

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, h, t, s, u, v, P, z, Wg, W2, w3, Wh = ctx.saved_tensors
        grad_values, grad_z, grad_weights, grad_scores, _ = grads
        b = ctx.b
        if grad_values is None:
            grad_values = z.new_zeros((*z.shape[:2], Wh.shape[1]))
        gz = grad_values @ Wh  # (e, b or 2b, L)
        if grad_z is not None:
            gz[:, :b] += grad_z
        A = P[:, :b]
        gA = gz[:, :b] @ h.mT  # (e, b, n)
        if grad_weights is not None:
            gA += grad_weights[:, None]  # outside the bag it is multiplied by A = 0
        gA *= A
        g = (gA - A * gA.sum(dim=2, keepdim=True)).sum(dim=1) * ctx.slope  # (e, n)
        if ctx.bags is not None:
            g = _centre(g, ctx.bags, ctx.sizes)
        if grad_scores is not None:
            g = g + grad_scores
        gv = _through_relu(g[..., None] * w3, v)  # (e, n, 128)
        gu = (W2.mT @ gv.mT).mT  # (e, n, k)
        gg = torch.cat([gu * s * (1 - t * t), gu * u * (1 - s)], dim=2)  # (e, n, 2k)
        # dropped units are 0 in h, like those that ReLU set to 0
        gh = _through_relu(torch.baddbmm(P.mT @ gz, gg, Wg), h)
        # matrix products with few rows and many columns are faster than the reverse
        return (
            *(None,) * 6,
            *(ctx.factor * (gh.mT @ x), ctx.factor * gh.sum(dim=1)),
            *(gg.mT @ h, gg.sum(dim=1)),
            *((u.mT @ gv).mT, gv.sum(dim=1)),
            *(g[:, None] @ v, g.sum(dim=1, keepdim=True)),
            *(grad_values.mT @ z, grad_values.sum(dim=1)),
        )


def _attention_logits(
    attention: Attention, scores: Tensor, bags: Tensor | None, sizes: Tensor | None
) -> tuple[Tensor, Tensor | float]:
    """Return the input (e, n) of the softmax within bags, and its derivative with respect to ξ (e, n).

    MAM needs ``bags`` (b, n) of 0 and 1 and ``sizes`` (b, 1).
    """
    if isinstance(attention, DAM):
        return nn.functional.logsigmoid(scores), torch.sigmoid(-scores)
    if isinstance(attention, SAM):
        return scores * attention.scale, attention.scale
    assert isinstance(attention, MAM)
    assert bags is not None
    assert sizes is not None
    centred = _centre(scores, bags, sizes)
    variance = bags @ (centred * centred)[..., None] / (sizes - 1).clamp(min=1)  # (e, b, 1)
    slope = _per_instance(attention.scale / attention.tau / (variance.sqrt() + attention.EPS), bags)
    return centred * slope, slope


def _bag_masks(sizes: Tensor, rows: Tensor) -> Tensor:
    """Return for each bag a mask of its instances among ``rows`` (n, …): (b, n) bool."""
    ends = sizes.cumsum(dim=0)[:, None]
    position = torch.arange(len(rows), device=rows.device)
    return (position < ends) & (position >= ends - sizes[:, None])


def _centre(scores: Tensor, bags: Tensor, sizes: Tensor) -> Tensor:
    """Subtract from scores (e, n) the mean of their bag: bags (b, n) of 0 and 1, sizes (b, 1)."""
    return scores - _per_instance(bags @ scores[..., None] / sizes, bags)


def _per_instance(values: Tensor, bags: Tensor) -> Tensor:
    """Return for each instance the value of its bag: (e, b, 1), (b, n) -> (e, n)."""
    return (bags.mT @ values).squeeze(2)


def _through_relu(gradient: Tensor, output: Tensor) -> Tensor:
    """Return the gradient where the output of ReLU is positive, and 0 elsewhere."""
    passed: Tensor = torch.ops.aten.threshold_backward(gradient, output, 0)
    return passed
