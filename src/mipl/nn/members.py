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

import copy
import functools
import math
import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from mipl.nn.attention import DAM, MAM, SAM, Attention, GatedScore
from mipl.nn.encoders import Dropout, FeatureEncoder, Standardize
from mipl.nn.heads import SigmoidHead
from mipl.nn.network import BagNetwork, ChunkedInstances, Output, is_background, kl_from_uniform

VIEWS = 512  # numbers of instances whose views are kept
BAGS, ROWS = 64, 8192  # of all members that are computed at once


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


def have_one_input(nets: Sequence[BagNetwork]) -> bool:
    """Return whether the scaling of networks, and the temperature of their attention, are the same."""
    first, *others = ({**net.scaling.state_dict(), **net.attention.state_dict()} for net in nets)
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
        self._storage: dict[tuple[str, int], Tensor] = {}
        self._memory: dict[tuple[int, int, int], _Memory] = {}

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
        mask, factor = self.dropout.mask(instances, (instances.shape[0], self.matrices[0].shape[1]))
        parts = [
            _Forward.apply(  # type: ignore[no-untyped-call]
                self.flat, self, self.scaling(instances[rows]), sizes[bags],
                None if mask is None else mask[rows], factor, number if torch.is_grad_enabled() else 0,
            )
            for number, (bags, rows) in enumerate(_parts(sizes, *self.matrices[0].shape[::2]))
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
        encoded = (self.encode(self.scaling(x), 0) for x in instances.parts(BagNetwork.CHUNK))
        scores = torch.cat([self.score(memory) for memory in encoded], dim=1)
        A, *_ = _attend(self.attention, scores, sizes)  # (e, b, N)
        z = A.new_zeros(())
        parts = torch.split(A, BagNetwork.CHUNK, dim=2)
        for x, part in zip(instances.parts(BagNetwork.CHUNK), parts, strict=True):
            z = z + part @ self.encode(self.scaling(x), 0).h
        return Output(self.classify(z).flatten(0, 1), z.flatten(0, 1), A.sum(dim=1), scores)

    def encode(
        self, x: Tensor, bags: int, mask: Tensor | None = None, factor: float = 1.0, part: int = 0
    ) -> _Memory:
        """Compute H (e, n, L) of scaled instances (n, d) in the memory that is returned."""
        memory = self.memory(part, x.shape[0], bags)
        # the scale factor of dropout is applied to rows and bias, because it commutes with ReLU
        torch.mul(x, factor, out=memory.x)
        memory.one.fill_(factor)
        torch.bmm(memory.rows, self.matrices[0].mT, out=memory.h).relu_()
        if mask is not None:
            memory.h.mul_(mask.to(x.dtype))
        return memory

    def score(self, memory: _Memory) -> Tensor:
        """Return ξ (e, n), Eq. 7; gates and hidden layer are in the memory."""
        _, Wg, bg, W2, w3, b3, *_ = self.matrices
        torch.baddbmm(bg, Wg, memory.hT, out=memory.gates)
        torch.mul(memory.t.tanh_(), memory.s.sigmoid_(), out=memory.product)
        memory.bias.fill_(1.0)
        torch.bmm(W2, memory.u, out=memory.v).relu_()
        return torch.baddbmm(b3, w3, memory.v).squeeze(1)

    def classify(self, z: Tensor) -> Tensor:
        """Return the logits (e, ·, k) of bag features (e, ·, L)."""
        Wh, bh = self.matrices[-2:]
        values = torch.baddbmm(bh, z, Wh.mT)
        return values.sigmoid_() if self.sigmoid else values

    def buffer(self, name: str, part: int, *shape: int) -> Tensor:
        """Return memory for a tensor of a shape, overwritten when the next step asks for it again."""
        size, own = math.prod(shape), self._storage.get((name, part))
        if own is None or own.shape[0] < size:
            own = self._storage[name, part] = self.flat.detach().new_empty(size + size // 8)
            self._memory.clear()
        return own[:size].view(shape)

    def memory(self, part: int, n: int, bags: int) -> _Memory:
        """Return the memory of a step on n instances: most steps have the views of an earlier one."""
        known = self._memory.get((part, n, bags))
        if known is None:
            if len(self._memory) > VIEWS:
                self._memory.clear()
            made = _Memory(self, part, n, bags)  # may clear what is known
            known = self._memory[part, n, bags] = made
        return known

    def background_kl(self, output: Output, sizes: Tensor) -> Tensor:
        """Return KL(uniform ‖ prediction) (e·b,) for the mean feature of each bag's background instances."""
        assert output.background is not None
        return kl_from_uniform(output.background)

    def clip(self, largest: float) -> None:
        """Shorten the gradient of each network to a norm of at most ``largest``."""
        assert self.flat.grad is not None
        if len(self._nets) == 1:
            norm = torch.linalg.vector_norm(self.flat.grad)
            self.flat.grad.mul_((largest / (norm + 1e-6)).clamp_(max=1.0))
            return
        rows = [gradient.flatten(1) for gradient in self.views(self.flat.grad)]
        norms = [torch.linalg.vector_norm(row, dim=1) for row in rows]
        norm = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        factor = (largest / (norm + 1e-6)).clamp_(max=1.0)[:, None]
        torch._foreach_mul_(rows, [factor] * len(rows))

    def copy_to_networks(self) -> None:
        """Copy the trained parameters to the networks."""
        with torch.no_grad():
            for e, net in enumerate(self._nets):
                for own, matrices in zip(_layers(net), _unpacked(self.matrices), strict=True):
                    own.copy_(matrices[e].view_as(own))
                net.attention.load_state_dict(self.attention.state_dict())


class _Memory:
    """What a step on n instances of b bags writes: views of the buffers of a part.

    A view takes as long as a small operation, and a step has thirty. Those of the backward pass are made when
    there is one.
    """

    def __init__(self, net: Members, part: int, n: int, b: int) -> None:
        W1, Wg, _, W2, *_ = net.matrices
        (e, L, columns), gates, hidden = W1.shape, Wg.shape[1], W2.shape[1]
        k, q = gates // 2, (2 if net.background else 1) * b
        self._net, self._part, self._bags = net, part, q
        rows = net.buffer("rows", part, n, columns)
        self.x, self.one, self.rows = rows[:, :-1], rows[:, -1], rows.expand(e, -1, -1)  # instances, 1 for b1
        self.h = net.buffer("h", part, e, n, L)
        self.hT = self.h.mT
        self.gates = net.buffer("gates", part, e, gates, n)
        self.t, self.s = self.gates[:, :k], self.gates[:, k:]
        self.u = net.buffer("u", part, e, k + 1, n)
        self.product, self.bias = self.u[:, :k], self.u[:, k]  # t s, and 1 for b2
        self.v = net.buffer("v", part, e, hidden, n)
        # rows of P are weights of instances: first the attention A, then the means over the background;
        # the gradient of the gates follows, since both are multiplied in one product
        self.factors = net.buffer("factors", part, e, q + gates, n)
        self.P, self.A, self.means = self.factors[:, :q], self.factors[:, :b], self.factors[:, b:q]

    @functools.cached_property
    def of_gates(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the gates (e, 2k, n), and its halves."""
        g, k = self.factors[:, self._bags :], self.t.shape[1]
        return g, g[:, :k], g[:, k:]

    @functools.cached_property
    def transposed(self) -> tuple[Tensor, Tensor]:
        """The hidden layer of the score (e, n, ·), and P with the gradient of the gates (e, n, ·)."""
        return self.v.mT, self.factors.mT

    @functools.cached_property
    def gradient(self) -> tuple[Tensor, list[Tensor]]:
        """The gradient of the parameters as one vector, and as matrices."""
        vector = self._net.buffer("gradient", self._part, self._net.flat.shape[0])
        return vector, self._net.views(vector)


def _layers(net: BagNetwork) -> list[nn.Parameter]:
    """Return weights and biases of the linear layers: encoder, gates, score (two layers), head."""
    modules = (net.encoder[0], net.score.gates, net.score.score[0], net.score.score[2], net.head)  # type: ignore[index]
    return [p for module in modules for p in (module.weight, module.bias)]  # type: ignore[misc,union-attr]


def _matrices(net: BagNetwork) -> list[Tensor]:
    """Return them as matrices; encoder and hidden layer of the score with the bias as last column."""
    W1, b1, Wg, bg, W2, b2, w3, b3, Wh, bh = (p.detach() for p in _layers(net))
    first, hidden = torch.cat([W1, b1[:, None]], dim=1), torch.cat([W2, b2[:, None]], dim=1)
    return [first, Wg, bg[:, None], hidden, w3, b3[:, None], Wh, bh[None]]


def _unpacked(matrices: Sequence[Tensor]) -> list[Tensor]:
    """Return the stacked matrices and biases in the order of :func:`_layers`."""
    W1, Wg, bg, W2, w3, b3, Wh, bh = matrices
    return [W1[..., :-1], W1[..., -1:], Wg, bg, W2[..., :-1], W2[..., -1:], w3, b3, Wh, bh]


# by the first network: what its parameters were, themselves (so that no id is given again), and all as one
_Stacked = tuple[list[tuple[int, int, int]], list[Tensor], Members]
_STACKED: weakref.WeakKeyDictionary[nn.Module, _Stacked] = weakref.WeakKeyDictionary()


def for_prediction(nets: Sequence[nn.Module]) -> Members | None:
    """Return networks as one for prediction, or None where they cannot be.

    Stacking the parameters takes longer than the prediction of a small bag: they are kept until a parameter
    changes. Every call has buffers of its own, so that threads can predict at once.
    """
    if not all(map(can_be_member, nets)):
        return None
    own = cast("Sequence[BagNetwork]", nets)
    tensors = [t for net in own for t in (*_layers(net), *net.scaling.buffers(), *net.attention.buffers())]
    state = [(id(t), t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
    known, _, members = _STACKED.get(own[0], (None, None, None))
    if members is None or known != state:
        if not have_one_input(own):
            return None
        with torch.inference_mode(False), torch.no_grad():
            members = Members(own, background=False).eval()
        members._nets = []  # no reference to the key
        _STACKED[own[0]] = state, tensors, members
    alone = copy.copy(members)
    alone._storage, alone._memory = {}, {}
    return alone


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
        b = sizes.shape[0]
        memory = net.encode(x, b, mask, factor, part)
        scores = net.score(memory)
        A, slope, in_bag, means = _attend(net.attention, scores, sizes)
        memory.A.copy_(A)
        if net.background:
            ignored = (in_bag & is_background(A, sizes[:, None])).to(A.dtype)
            count = ignored.sum(dim=2, keepdim=True)  # (e, b, 1)
            torch.div(ignored, count.clamp(min=1), out=memory.means)
            ctx.has_background = count.clamp_(max=1)
        z = torch.bmm(memory.P, memory.h)  # Eq. 13
        values = net.classify(z)  # (e, b or 2b, k)
        background = values[:, b:] * ctx.has_background if net.background else values[:, b:]
        ctx.net, ctx.kept = net, (memory, A, z, slope, means)
        ctx.values = values if net.sigmoid else None
        ctx.set_materialize_grads(False)
        weights, z = A.sum(dim=1), z[:, :b]
        ctx.mark_non_differentiable(z, weights, scores)
        return values[:, :b].contiguous(), background, z, weights, scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        net: Members = ctx.net
        memory, A, z, slope, means = ctx.kept
        _, Wg, _, W2, w3, _, Wh, _ = net.matrices
        gradient, (dW1, dWg, dbg, dW2, dw3, db3, dWh, dbh) = memory.gradient
        (gg, gt, gs), (vT, factorsT) = memory.of_gates, memory.transposed
        h, t, s, v, product = memory.h, memory.t, memory.s, memory.v, memory.product
        b, k, w3T = A.shape[1], t.shape[1], w3.mT
        of_logits, of_background = grads[:2]
        gy = z.new_zeros(z.shape[0], b, k) if of_logits is None else of_logits
        if net.background:
            of_background = torch.zeros_like(gy) if of_background is None else of_background
            gy = torch.cat([gy, of_background * ctx.has_background], dim=1)
        if ctx.values is not None:
            gy = gy * ctx.values * (1 - ctx.values)
        gz = torch.bmm(gy, Wh)  # (e, b or 2b, L)
        gA = torch.bmm(gz[:, :b], memory.hT)  # (e, b, n)
        g = torch.ops.aten._softmax_backward_data(gA, A, 2, A.dtype).sum(dim=1) * slope  # (e, n)
        if means is not None:
            g = _centre(g, *means)
        g = g[:, None]  # (e, 1, n)
        torch.bmm(g, vT, out=dw3)
        torch.sum(g, dim=2, keepdim=True, out=db3)
        # the gradient of the hidden layer is w3 gᵀ where v > 0: its products follow without it
        active = v.sign_()
        torch.bmm(active, (memory.u * g).mT, out=dW2).mul_(w3T)
        gu = torch.bmm((W2[..., :k] * w3T).mT, active).mul_(g)  # (e, k, n)
        torch.addcmul(s, product, t, value=-1, out=gt).mul_(gu)  # s (1 − t²)
        torch.addcmul(product, product, s, value=-1, out=gs).mul_(gu)  # t s (1 − s)
        torch.bmm(gg, h, out=dWg)
        torch.sum(gg, dim=2, keepdim=True, out=dbg)
        gh = net.buffer("gh", 0, *h.shape)
        torch.bmm(factorsT, torch.cat([gz, Wg], dim=1), out=gh)
        # dropped units are 0 in h, like those that ReLU set to 0
        torch.ops.aten.threshold_backward.grad_input(gh, h, 0, grad_input=gh)
        torch.bmm(gh.mT, memory.rows, out=dW1)
        torch.bmm(gy.mT, z, out=dWh)
        torch.sum(gy, dim=1, keepdim=True, out=dbh)
        return gradient, None, None, None, None, None, None


def _parts(sizes: Tensor, members: int, width: int) -> list[tuple[slice, slice]]:
    """Return which bags, and which of their instances of a width, are computed at once.

    What is computed of few instances stays in the processor's cache, and the products with the dense A of
    few bags are small beside those with the instances; with many of either, operations are few.
    """
    most_bags, enough = max(8, BAGS // members, width // 16), max(1, ROWS // members)
    lengths = sizes.tolist()
    if len(lengths) <= most_bags and sum(lengths) <= enough:
        return [(slice(None), slice(None))]
    parts, bag, row, end = [], 0, 0, 0
    for i, length in enumerate(lengths):
        end += length
        if end - row >= enough or i + 1 - bag >= most_bags or i + 1 == len(lengths):
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
    bag = torch.repeat_interleave(sizes, output_size=n)
    return bag == torch.arange(sizes.shape[0], device=sizes.device)[:, None]


def _centre(scores: Tensor, bags: Tensor, sizes: Tensor) -> Tensor:
    """Subtract from scores (e, n) the mean of their bag: bags (b, n) of 0 and 1, sizes (b, 1)."""
    return scores - _per_instance(bags @ scores[..., None] / sizes, bags)


def _per_instance(values: Tensor, bags: Tensor) -> Tensor:
    """Return for each instance the value of its bag: (e, b, 1), (b, n) -> (e, n)."""
    return (bags.mT @ values).squeeze(2)
