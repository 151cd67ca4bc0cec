"""UAMIPL: FastMIPL's mixed-effects model, with evidence on how reliable each instance is."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mipl.data.batch import BagLoader
from mipl.methods.base import METHODS
from mipl.methods.fastmipl import FastMIPL, MixedEffects
from mipl.nn.segments import segment_ids, segment_sum
from mipl.registry import setting

# data set -> the authors' λ at r = 1, 2, 3; epochs, lr and samples are those of FastMIPL
PUBLISHED = {
    "mnist-mipl": (0.01, 0.01, 0.1),
    "fmnist-mipl": (0.01, 0.05, 0.05),
    "birdsong-mipl": (0.2, 0.1, 0.5),
    "sival-mipl": (0.05, 0.05, 0.2),
}
OTHERWISE = (0.1, 0.1, 0.1)  # CRC; for other data sets our choice
FLOOR = 1e-6  # of the evidence, and of the range of uncertainties


class EvidentialEffects(MixedEffects):
    """Mixed effects whose weights of instances are a mixture of attention and reliability.

    An instance has the evidence relu(ξ) + 1e-6 for each class, so that α = evidence + 1 is a Dirichlet
    distribution with the uncertainty u = k/Σα.
    """

    mixing: Tensor
    bounds: Tensor
    share: Tensor

    def __init__(self, scaling: nn.Module, encoder: nn.Module, width: int, k: int, method: UAMIPL) -> None:
        super().__init__(scaling, encoder, width, k, method.rank)
        self.script = method.way == "script"
        self.reliability, self.threshold = method.reliability, method.threshold
        # whether training has reached the epoch from which weights are mixed
        self.register_buffer("mixing", torch.zeros((), dtype=torch.bool))
        # of the training bags at the posterior mean, for prediction: the range of u, and λ′
        self.register_buffer("bounds", torch.tensor([0.0, 1.0]))
        self.register_buffer("share", torch.zeros(()))

    def uncertainty(self, scores: Tensor, k: int) -> Tensor:
        """Return u (N, S·k) of scores (N, S·k): one for all classes, or as the script for all samples."""
        alpha = (scores.relu() + FLOOR + 1).view(len(scores), -1, k)  # (N, S, k)
        total = alpha.sum(dim=1 if self.script else 2, keepdim=True)
        u: Tensor = (k / total).expand_as(alpha).flatten(1)
        return u

    def effects(self, h: Tensor, sizes: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the effects of bags (b, S, k), before standardisation, and rms(β_z) (S, k).

        From the epoch on in which mixing begins, the weights are (1 − λ′) a + λ′ (1 − u) with u scaled to
        [0, 1] and λ′ = λ · mean(u), where mean(u) reaches the threshold; in training over the batch, in
        prediction by what :meth:`UAMIPL.finish` has stored.
        """
        scores, values, rms = self.terms(h, beta)
        effects = self.attended(scores, values, sizes)  # (b, Sk)
        if self.mixing and (self.training or self.share):
            u = self.uncertainty(scores, beta.shape[1])
            u, share = self.scaled(u) if self.training else (self.within_bounds(u), self.share)
            reliable = segment_sum((1 - u) * values, segment_ids(sizes), len(sizes))
            effects = (1 - share) * effects + share * reliable
        return effects.view(-1, *beta.shape[:2]), rms.view(beta.shape[:2])

    def scaled(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return u (N, …) scaled to [0, 1] over the batch, and λ′."""
        low, high = u.min(), u.max()
        u = (u - low) / (high - low).clamp(min=FLOOR)
        mean = u.mean()
        return u, torch.where(mean >= self.threshold, self.reliability * mean, 0.0)

    def within_bounds(self, u: Tensor) -> Tensor:
        """Return u scaled by the range of the training bags, in [0, 1]."""
        low, high = self.bounds
        scaled: Tensor = ((u - low) / (high - low).clamp(min=FLOOR)).clamp(0, 1)
        return scaled


@dataclasses.dataclass(frozen=True)
class UAMIPL(FastMIPL):
    """FastMIPL, with weights of instances that also depend on the evidence of an instance for the classes."""

    summary = (
        "FastMIPL's mixed-effects model with another aggregation: the scores of an instance are also taken "
        "as evidence for the classes, and its uncertainty is that of their Dirichlet distribution. After "
        "some epochs, while the mean uncertainty is high, the weight of an instance is a mixture of its "
        "attention and its reliability, one minus the uncertainty."
    )
    citation = "UAMIPL: an evidential, uncertainty-aware extension of FastMIPL, 2026."
    advice = (
        "As a baseline beside fastmipl. Its authors' script sums the evidence over posterior samples instead "
        "of classes and predicts by attention alone: way=script does that."
    )

    reliability: float = setting(0.1, "λ, the largest share of the reliability in a weight", within="[0, 1]")
    threshold: float = setting(0.5, "mean uncertainty from which on weights are mixed", within="[0, 1]")
    mix_after: int = setting(50, "epochs before weights are mixed", within="[0, inf)")
    way: Literal["text", "script"] = setting(
        "text",
        "text: as the paper defines it; script: as the authors' script computes it, with evidence summed "
        "over samples and no mixing in prediction",
    )

    @classmethod
    def recommended(cls, recipe: str, dataset: str, r: int | None) -> dict[str, Any]:
        """Return FastMIPL's, and under ``paper`` the authors' λ and optimiser."""
        shared = super().recommended(recipe, dataset, r)
        if recipe != "paper":
            return shared
        values = PUBLISHED.get(dataset, OTHERWISE)
        return {**shared, "optimizer": "sgd", "reliability": values[min(max(r or 1, 1), 3) - 1]}

    def network(self, scaling: nn.Module, encoder: nn.Module, width: int, k: int) -> MixedEffects:
        """Return the network for instance features of a width."""
        return EvidentialEffects(scaling, encoder, width, k, self)

    def on_epoch_start(self, net: MixedEffects, epoch: int) -> None:
        """Begin to mix after ``mix_after`` epochs."""
        cast(EvidentialEffects, net).mixing.fill_(epoch > self.mix_after)

    def finish(self, net: MixedEffects, loader: BagLoader) -> None:
        """Store the range of uncertainties and λ′ of the training bags, then what FastMIPL stores."""
        assert isinstance(net, EvidentialEffects)
        if net.mixing and not net.script:
            u = torch.cat([_uncertainties(net, batch.instances) for batch in loader.in_order()])
            net.bounds.copy_(torch.stack([u.min(), u.max()]))
            net.share.copy_(net.scaled(u)[1])
        super().finish(net, loader)


def _uncertainties(net: EvidentialEffects, instances: Tensor) -> Tensor:
    """Return the uncertainty u (N,) of each instance at the posterior mean."""
    scores, _, _ = net.terms(net.encode(instances), net.mean[None])
    return net.uncertainty(scores, len(net.mean))[:, 0]


METHODS.register("uamipl", UAMIPL)
