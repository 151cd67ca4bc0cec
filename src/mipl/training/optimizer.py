"""AdamW and SGD by torch's own functions.

The classes of ``torch.optim`` import torch's compiler when the first optimiser is made, which takes longer
than many trainings on feature vectors. The functions that they call do not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

MOMENTUM = 0.9  # of SGD
BETAS = 0.9, 0.999  # of AdamW


@dataclasses.dataclass(frozen=True)
class Layers:
    """Parameters with one share of the learning rate, and the optimiser's state for each of them."""

    share: float
    parameters: list[Tensor]
    state: dict[str, list[Tensor]]

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters."""
        return [p.grad for p in self.parameters if p.grad is not None]


class Optimizer:
    """AdamW, or SGD with Nesterov momentum; every parameter has a gradient at all times.

    Args:
        kind: "adamw" or "sgd".
        shares: (factor on the learning rate, parameters). A parameter that occurs again is left out, and so
            is one that needs no gradient.
        weight_decay: the weight decay of all parameters.
        eps: AdamW's ε.
    """

    def __init__(
        self,
        kind: Literal["adamw", "sgd"],
        shares: Iterable[tuple[float, list[nn.Parameter]]],
        weight_decay: float,
        eps: float = 1e-8,
    ) -> None:
        self.kind, self.weight_decay, self.eps = kind, weight_decay, eps
        self.layers: list[Layers] = []
        known: set[int] = set()
        for share, parameters in shares:
            own = list({id(p): p for p in parameters if p.requires_grad and id(p) not in known}.values())
            known |= {id(p) for p in own}
            for dtype in dict.fromkeys(p.dtype for p in own):  # one call needs one type
                self.layers.append(self._layers(share, [p for p in own if p.dtype == dtype]))

    def _layers(self, share: float, own: list[nn.Parameter]) -> Layers:
        for p in own:
            p.grad = torch.zeros_like(p)
        names = ("exp_avg", "exp_avg_sq") if self.kind == "adamw" else ("momentum",)
        state = {name: [torch.zeros_like(p, requires_grad=False) for p in own] for name in names}
        if self.kind == "adamw":
            state["step"] = [torch.zeros((), device=p.device) for p in own]
        return Layers(share, list(own), state)

    @property
    def parameters(self) -> list[Tensor]:
        """The parameters that are trained."""
        return [p for layers in self.layers for p in layers.parameters]

    @property
    def gradients(self) -> list[Tensor]:
        """Their gradients."""
        return [gradient for layers in self.layers for gradient in layers.gradients]

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        torch._foreach_zero_(self.gradients)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Change the parameters by their gradients at a learning rate."""
        for layers in self.layers:
            rate, state = layers.share * lr, layers.state
            if self.kind == "sgd":
                sgd(
                    layers.parameters, layers.gradients, list(state["momentum"]), fused=True,
                    weight_decay=self.weight_decay, momentum=MOMENTUM, lr=rate, dampening=0.0,
                    nesterov=True, maximize=False,
                )  # fmt: skip
            else:
                torch._foreach_add_(state["step"], 1)
                torch._fused_adamw_(
                    layers.parameters, layers.gradients, state["exp_avg"], state["exp_avg_sq"], [],
                    state["step"], amsgrad=False, beta1=BETAS[0], beta2=BETAS[1], lr=rate,
                    weight_decay=self.weight_decay, eps=self.eps, maximize=False,
                )  # fmt: skip

    def tensors(self) -> dict[str, Tensor]:
        """Return the state by name, for a checkpoint; the tensors are the optimiser's own."""
        return {
            f"{i}.{name}.{j}": tensor
            for i, layers in enumerate(self.layers)
            for name, tensors in layers.state.items()
            for j, tensor in enumerate(tensors)
        }
