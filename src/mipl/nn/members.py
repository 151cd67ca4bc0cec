"""Networks of one shape on the same bags as one computation: the members of an ensemble, or a single network.

Eight bags of short vectors are a few hundred rows: most of the time of a step is the overhead of hundreds of
small operations. With a leading dimension of e networks, the same number of operations does e times the work,
and with a closed-form gradient in a single autograd function there are few of them. Attention is a dense
matrix A (b, n) that is zero outside each bag: a softmax over its rows normalises within bags, and its product
with H (n, L) sums within bags. Values and gradients equal those of `BagNetwork`.

What has a value per instance and layer is written to buffers that the next step uses again. Gates, the hidden
layer of the score and everything behind them have instances as their last dimension, so that the parts of a
matrix, such as the two gates, are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mipl.nn.attention import DAM, MAM, SAM, Attention, GatedScore
from mipl.nn.encoders import Dropout, FeatureEncoder, Standardize
from mipl.nn.heads import SigmoidHead
from mipl.nn.network import BagNetwork, ChunkedInstances, Output, is_background, kl_from_uniform

BAGS, ROWS = 16, 1024  # at once: the dense matrix A and what is computed of rows stay small


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


def have_one_input(nets: Sequence[nn.Module]) -> bool:
    """Return whether the scaling of networks, and the temperature of their attention, are the same."""
    first, *others = ({**net.scaling.state_dict(), **net.attention.state_dict()} for net in nets)  # type: ignore[union-attr]
    return all(
        first.keys() == own.keys() and all(torch.equal(first[name], own[name]) for name in first)
        for own in others
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
        stacked = [torch.stack(same) for same in zip(*map(_matrices, nets), strict=True)]
        # one vector: a step of the optimiser is one operation
        self.flat = nn.Parameter(torch.cat([matrices.flatten() for matrices in stacked]))
        self._shapes = [matrices.shape for matrices in stacked]
        self.matrices = self.views(self.flat.detach())
        self.scaling = nets[0].scaling
        self.attention = nets[0].attention
        self.dropout = nets[0].encoder[2]  # type: ignore[index]
        self.sigmoid = isinstance(nets[0].head, SigmoidHead)
        self._buffers_of: dict[tuple[str, int], Tensor] = {}

    def views(self, vector: Tensor) -> list[Tensor]:
        """Return the matrices (e, ·, ·) that are parts of a vector like ``flat``."""
        parts = torch.split(vector, [shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def forward(self, instances: Tensor | ChunkedInstances, sizes: Tensor) -> Output:
        """Return logits (e·b, k), z (e·b, L), a (e, n), ξ (e, n) and background logits (e·b, k).

        The loss may depend on the logits alone.
        """
        if not isinstance(instances, Tensor):
            return self._forward_chunked(instances, sizes)
        assert isinstance(self.dropout, Dropout)
        # one dropout mask for all networks: their units are unrelated anyway
        mask, factor = self.dropout.mask(instances, (len(instances), self.matrices[0].shape[1]))
        parts = [
            _Forward.apply(  # type: ignore[no-untyped-call]
                self.flat, self, self.scaling(instances[rows]), sizes[bags],
                None if mask is None else mask[rows], factor, number if torch.is_grad_enabled() else 0,
            )
            for number, (bags, rows) in enumerate(_parts(sizes))
        ]  # fmt: skip
        logits, background, z, weights, scores = (
            part[0] if len(parts) == 1 else torch.cat(part, dim=1) for part in zip(*parts, strict=True)
        )
        return Output(
            logits.flatten(0, 1),
            z.flatten(0, 1),
            weights,
            scores,
            background=background.flatten(0, 1) if self.background else None,
        )

    def _forward_chunked(self, instances: ChunkedInstances, sizes: Tensor) -> Output:
        """Compute the same with one chunk in memory: first all scores, which the softmax of a bag needs."""
        chunks = instances.parts(BagNetwork.CHUNK)
        scores = torch.cat([self.score(self.encode(self.scaling(x))[1])[-1] for x in chunks], dim=1)
        A, *_ = _attend(self.attention, scores, sizes)  # (e, b, N)
        z = A.new_zeros(())
        parts = torch.split(A, BagNetwork.CHUNK, dim=2)
        for x, part in zip(instances.parts(BagNetwork.CHUNK), parts, strict=True):
            z = z + part @ self.encode(self.scaling(x))[1]
        return Output(self.classify(z).flatten(0, 1), z.flatten(0, 1), A.sum(dim=1), scores)

    def encode(
        self, x: Tensor, mask: Tensor | None = None, factor: float = 1.0, part: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Return scaled instances with a column of ones (n, d + 1), times ``factor``, and H (e, n, L)."""
        W1 = self.matrices[0]
        e, (n, d) = len(W1), x.shape
        # the scale factor of dropout is applied to rows and bias, because it commutes with ReLU
        rows = self.buffer("rows", part, n, d + 1)
        torch.mul(x, factor, out=rows[:, :d])
        rows[:, d] = factor
        h = self.buffer("h", part, e, n, W1.shape[1])
        torch.bmm(rows.expand(e, -1, -1), W1.mT, out=h).relu_()
        if mask is not None:
            h *= mask.to(h.dtype)
        return rows, h

    def score(self, h: Tensor, part: int = 0) -> tuple[Tensor, ...]:
        """Return gates t and s (e, k, n), t s with a row of ones, the hidden layer, and ξ (e, n) of Eq. 7."""
        _, Wg, bg, W2, w3, b3, *_ = self.matrices
        e, n, gates = len(h), h.shape[1], Wg.shape[1]
        k = gates // 2
        gated = torch.baddbmm(bg, Wg, h.mT, out=self.buffer("gates", part, e, gates, n))
        t, s = gated[:, :k].tanh_(), gated[:, k:].sigmoid_()
        u = self.buffer("u", part, e, k + 1, n)
        torch.mul(t, s, out=u[:, :k])
        u[:, k] = 1.0  # for the bias
        v = torch.bmm(W2, u, out=self.buffer("v", part, e, W2.shape[1], n)).relu_()
        return t, s, u, v, torch.baddbmm(b3, w3, v).squeeze(1)

    def classify(self, z: Tensor) -> Tensor:
        """Return the logits (e, ·, k) of bag features (e, ·, L)."""
        Wh, bh = self.matrices[-2:]
        values = torch.baddbmm(bh, z, Wh.mT)
        return values.sigmoid_() if self.sigmoid else values

    def buffer(self, name: str, part: int, *shape: int) -> Tensor:
        """Return memory for a tensor of a shape, overwritten when the next step asks for it again."""
        size, own = math.prod(shape), self._buffers_of.get((name, part))
        if own is None or len(own) < size:
            own = self._buffers_of[name, part] = self.flat.new_empty(size + size // 8)
        return own[:size].view(shape)

    def background_kl(self, output: Output, sizes: Tensor) -> Tensor:
        """Return KL(uniform ‖ prediction) (e·b,) for the mean feature of each bag's background instances."""
        assert output.background is not None
        return kl_from_uniform(output.background)

    def clip(self, largest: float) -> None:
        """Shorten the gradient of each network to a norm of at most ``largest``."""
        assert self.flat.grad is not None
        e = len(self.matrices[0])
        rows = [self.flat.grad[None]] if e == 1 else [g.view(e, -1) for g in self.views(self.flat.grad)]
        norm = torch.linalg.vector_norm(
            torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows]), dim=0
        )
        factor = (largest / (norm + 1e-6)).clamp_(max=1.0)[:, None]
        torch._foreach_mul_(rows, [factor] * len(rows))

    def copy_to_networks(self) -> None:
        """Copy the trained parameters to the networks."""
        with torch.no_grad():
            for e, net in enumerate(self._nets):
                for own, matrices in zip(_layers(net), _unpacked(self.matrices), strict=True):
                    own.copy_(matrices[e].view_as(own))
                net.attention.load_state_dict(self.attention.state_dict())


def _layers(net: BagNetwork) -> list[nn.Parameter]:
    """Return weights and biases of the linear layers: encoder, gates, score (two layers), head."""
    modules = (net.encoder[0], net.score.gates, net.score.score[0], net.score.score[2], net.head)  # type: ignore[index]
    return [p for module in modules for p in (module.weight, module.bias)]  # type: ignore[misc]


def _matrices(net: BagNetwork) -> list[Tensor]:
    """Return them as matrices; encoder and hidden layer of the score with the bias as last column."""
    W1, b1, Wg, bg, W2, b2, w3, b3, Wh, bh = (p.detach() for p in _layers(net))
    first, hidden = torch.cat([W1, b1[:, None]], dim=1), torch.cat([W2, b2[:, None]], dim=1)
    return [first, Wg, bg[:, None], hidden, w3, b3[:, None], Wh, bh[None]]


def _unpacked(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return the stacked matrices and biases in the order of :func:`_layers`."""
    W1, Wg, bg, W2, w3, b3, Wh, bh = matrices
    return [W1[..., :-1], W1[..., -1:], Wg, bg, W2[..., :-1], W2[..., -1:], w3, b3, Wh, bh]


class _Forward(torch.autograd.Function):
    """Logits (e, b, k), background logits (e, b, k), z (e, b, L), a (e, n) and ξ (e, n)."""

    @staticmethod
    def forward(
        ctx: Any,
        flat: Tensor,
        net: Members,
        x: Tensor,
        sizes: Tensor,
        mask: Tensor | None,
        factor: float,
        part: int,
    ) -> tuple[Tensor, ...]:
        rows, h = net.encode(x, mask, factor, part)
        t, s, u, v, scores = net.score(h, part)
        A, slope, in_bag, means = _attend(net.attention, scores, sizes)
        # rows of P are weights of instances: first the attention A, then the means over the background;
        # the gradient of the gates follows, since both are multiplied in one product
        b, q = len(sizes), (2 if net.background else 1) * len(sizes)
        factors = net.buffer("factors", part, len(h), q + 2 * t.shape[1], len(x))
        P = factors[:, :q]
        P[:, :b] = A
        if net.background:
            ignored = (in_bag & is_background(A, sizes[:, None])).to(A.dtype)
            count = ignored.sum(dim=2, keepdim=True)  # (e, b, 1)
            torch.div(ignored, count.clamp(min=1), out=P[:, b:])
            ctx.has_background = count.clamp(max=1)
        z = P @ h  # Eq. 13
        values = net.classify(z)  # (e, q, k)
        background = values[:, b:] * ctx.has_background if net.background else values[:, b:]
        ctx.net, ctx.kept = net, (rows, h, t, s, u, v, A, factors, z, slope, means)
        ctx.values = values if net.sigmoid else None
        ctx.set_materialize_grads(False)
        weights, z = A.sum(dim=1), z[:, :b]
        ctx.mark_non_differentiable(z, weights, scores)
        return values[:, :b].contiguous(), background, z, weights, scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        net: Members = ctx.net
        rows, h, t, s, u, v, A, factors, z, slope, means = ctx.kept
        _, Wg, _, W2, w3, _, Wh, _ = net.matrices
        (e, n, L), b, k = h.shape, A.shape[1], t.shape[1]
        q = factors.shape[1] - 2 * k
        gg = factors[:, q:]
        grad_logits, grad_background = grads[:2]
        gy = z.new_zeros(e, q, k)
        if grad_logits is not None:
            gy[:, :b] = grad_logits
        if grad_background is not None and net.background:
            torch.mul(grad_background, ctx.has_background, out=gy[:, b:])
        if ctx.values is not None:
            gy *= ctx.values * (1 - ctx.values)
        gz = gy @ Wh  # (e, q, L)
        gA = gz[:, :b] @ h.mT  # (e, b, n)
        g = torch.ops.aten._softmax_backward_data(gA, A, 2, A.dtype).sum(dim=1) * slope  # (e, n)
        if means is not None:
            g = _centre(g, *means)
        gradient = torch.empty_like(net.flat)
        dW1, dWg, dbg, dW2, dw3, db3, dWh, dbh = net.views(gradient)
        g = g[:, None]  # (e, 1, n)
        torch.bmm(g, v.mT, out=dw3)
        torch.sum(g, dim=2, keepdim=True, out=db3)
        # the gradient of the hidden layer is w3 gᵀ where v > 0: its products follow without it
        active, outer = v.sign_(), w3.mT * W2
        torch.bmm(active, (u * g).mT, out=dW2)
        dW2 *= w3.mT
        gu = (outer[..., :k].mT @ active).mul_(g)  # (e, k, n)
        u = u[:, :k]
        torch.addcmul(s, u, t, value=-1, out=gg[:, :k]).mul_(gu)  # s (1 − t²)
        torch.addcmul(u, u, s, value=-1, out=gg[:, k:]).mul_(gu)  # t s (1 − s)
        torch.bmm(gg, h, out=dWg)
        torch.sum(gg, dim=2, keepdim=True, out=dbg)
        gh = net.buffer("gh", 0, e, n, L)
        torch.bmm(factors.mT, torch.cat([gz, Wg], dim=1), out=gh)
        # dropped units are 0 in h, like those that ReLU set to 0
        torch.ops.aten.threshold_backward.grad_input(gh, h, 0, grad_input=gh)
        torch.bmm(gh.mT, rows.expand(e, -1, -1), out=dW1)
        torch.bmm(gy.mT, z, out=dWh)
        torch.sum(gy, dim=1, keepdim=True, out=dbh)
        return gradient, None, None, None, None, None, None


def _parts(sizes: Tensor) -> list[tuple[slice, slice]]:
    """Return which bags, and which of their instances, are computed at once: with ``ROWS`` or ``BAGS``."""
    lengths = sizes.tolist()
    if len(lengths) <= BAGS and sum(lengths) <= ROWS:
        return [(slice(None), slice(None))]
    parts, bag, row, end = [], 0, 0, 0
    for i, length in enumerate(lengths):
        end += length
        if end - row >= ROWS or i + 1 - bag >= BAGS or i + 1 == len(lengths):
            parts.append((slice(bag, i + 1), slice(row, end)))
            bag, row = i + 1, end
    return parts


Means = tuple[Tensor, Tensor]  # what :func:`_centre` needs: bags (b, n) of 0 and 1, sizes (b, 1)


def _attend(
    attention: Attention, scores: Tensor, sizes: Tensor
) -> tuple[Tensor, Tensor | float, Tensor, Means | None]:
    """Return A (e, b, n) of scores ξ (e, n), what its gradient needs, and the instances of bags (b, n).

    The softmax within bags has an input whose derivative with respect to ξ is the second value (e, n); where
    there is a fourth, the input is centred within bags, and so is its gradient.
    """
    in_bag = _bag_masks(sizes, scores.shape[1])
    means: Means | None = None
    slope: Tensor | float
    if isinstance(attention, DAM):
        logits, slope = nn.functional.logsigmoid(scores), torch.sigmoid(-scores)
    elif isinstance(attention, SAM):
        logits, slope = scores * attention.scale, attention.scale
    else:
        assert isinstance(attention, MAM)
        means = bags, counts = in_bag.to(scores.dtype), sizes[:, None].to(scores.dtype)
        centred = _centre(scores, bags, counts)
        variance = bags @ (centred * centred)[..., None] / (counts - 1).clamp(min=1)  # (e, b, 1)
        slope = _per_instance(attention.scale / attention.tau / (variance.sqrt() + attention.EPS), bags)
        logits = centred * slope
    A = torch.where(in_bag, logits[:, None], -torch.inf).softmax(dim=2)
    return A, slope, in_bag, means


def _bag_masks(sizes: Tensor, n: int) -> Tensor:
    """Return for each bag a mask of its instances among n: (b, n) bool."""
    ends = sizes.cumsum(dim=0)[:, None]
    position = torch.arange(n, device=sizes.device)
    return (position < ends) & (position >= ends - sizes[:, None])


def _centre(scores: Tensor, bags: Tensor, sizes: Tensor) -> Tensor:
    """Subtract from scores (e, n) the mean of their bag: bags (b, n) of 0 and 1, sizes (b, 1)."""
    return scores - _per_instance(bags @ scores[..., None] / sizes, bags)


def _per_instance(values: Tensor, bags: Tensor) -> Tensor:
    """Return for each instance the value of its bag: (e, b, 1), (b, n) -> (e, n)."""
    return (bags.mT @ values).squeeze(2)
