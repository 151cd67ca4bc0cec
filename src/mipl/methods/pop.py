"""POP: PRODEN with progressive purification of the candidate sets; optionally with CDL as its loss."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor

from mipl.data.batch import BagBatch, BagLoader
from mipl.errors import SettingError
from mipl.losses import cdl_loss, mdl_loss
from mipl.methods.base import CDL_PAPER, METHODS, StepContext
from mipl.methods.partial import PartialLabelMethod
from mipl.nn.pooled import PooledNetwork
from mipl.pseudo_labels import PseudoLabels
from mipl.registry import setting

RECENT = 5  # epochs whose weights are averaged
GROWTH = 1.001  # factor on θ after an epoch that dropped few candidates
FEW = 1e-4  # fraction of the m × k entries


@dataclasses.dataclass(frozen=True)
class POP(PartialLabelMethod):
    """Drop the candidates whose weight has been small for several epochs."""

    summary = (
        "PRODEN on pooled bags with purification: after some epochs, candidates whose weight, averaged over "
        "the last five epochs, is below θ times the largest of the bag are removed permanently; θ grows "
        "slowly after epochs that removed few. pop-cc and pop-cn use the calibratable disambiguation loss "
        "instead of the cross-entropy."
    )
    citation = (
        "Ning Xu, Biao Liu, Jiaqi Lv, Congyu Qiao, Xin Geng: Progressive Purification for Instance-Dependent "
        f"Partial Label Learning. ICML 2023. With cc and cn: {CDL_PAPER}"
    )
    advice = (
        "For false candidates that depend on the instance (look-alikes). In the CDL paper pop-cc and pop-cn "
        "are better than pop in accuracy and in calibration."
    )

    competitor: Literal["none", "cc", "cn"] = setting("none", "none: cross-entropy; cc or cn: CDL")
    gamma: float = setting(1.0, "γ of CDL", within="[0, inf)")
    purify_after: int = setting(20, "epochs before the first purification", within="[1, inf)")
    theta_start: float = setting(1e-3, "initial θ", within="[0, 1)")
    theta_max: float = setting(0.4, "largest θ", within="[0, 1)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.theta_start > self.theta_max:
            raise SettingError(
                f"theta_start = {self.theta_start} must be at most theta_max = {self.theta_max}."
            )

    def prepare(self, net: PooledNetwork, loader: BagLoader, table: PseudoLabels, seed: int) -> None:
        """Initialise the purified sets with the given candidate sets."""
        super().prepare(net, loader, table, seed)
        table.memory["candidates"] = table.candidates.clone()  # (m, k)
        table.memory["recent"] = table.weights.new_zeros((RECENT, *table.weights.shape))
        table.memory["theta"] = torch.tensor(self.theta_start, dtype=torch.float64)

    def candidates(self, batch: BagBatch, table: PseudoLabels) -> Tensor:
        """Return the purified candidate sets (b, k)."""
        return table.memory["candidates"][batch.index]

    def objective(
        self, net: PooledNetwork, batch: BagBatch, table: PseudoLabels, context: StepContext
    ) -> Tensor:
        """Return Σ_S −w log p, or Eq. 14 of the CDL paper, of each bag (b,); S is the purified set."""
        logits = net(batch.instances, batch.sizes)
        candidates, weights = self.candidates(batch, table), table.weights[batch.index]
        if self.competitor == "none":
            return mdl_loss(logits, candidates, weights)
        return cdl_loss(logits, candidates, weights, self.competitor, self.gamma * context.gamma)

    def on_epoch_end(self, net: PooledNetwork, table: PseudoLabels, context: StepContext) -> None:
        """Drop candidates with a mean weight below θ times the largest of the bag, after the warm-up."""
        candidates, recent, theta = (table.memory[name] for name in ("candidates", "recent", "theta"))
        recent[context.epoch % RECENT] = table.weights
        if context.epoch < self.purify_after or context.gamma == 0.0:
            return
        average = recent.sum(dim=0).masked_fill(~candidates, 0.0)  # (m, k), up to a constant factor
        dropped = candidates & (average < float(theta) * average.max(dim=1, keepdim=True).values)
        candidates &= ~dropped  # never the largest
        # A bag whose present weights are all on dropped candidates gets uniform weights.
        weights = (table.weights + 1e-12).masked_fill(~candidates, 0.0)
        table.weights = weights / weights.sum(dim=1, keepdim=True)
        if int(dropped.sum()) < FEW * dropped.numel():
            theta.mul_(GROWTH).clamp_(max=self.theta_max)


METHODS.register("pop", POP)
METHODS.register("pop-cc", POP, competitor="cc")
METHODS.register("pop-cn", POP, competitor="cn")
