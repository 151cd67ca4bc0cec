"""From bags to a trained model: pretrain (images) -> cross-fit -> select -> calibrate -> report."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from mipl.annotators import AnnotatorModel, Estimate, VoteTable
from mipl.calibration.candidate_model import LEVEL, chance_p_value, estimate_candidates
from mipl.calibration.scaling import (
    ENSEMBLE_RANGE,
    Evidence,
    Scaling,
    ensemble_scaling,
    log_sum,
    softest_scaling,
    with_evidence,
)
from mipl.data.bags import Bags
from mipl.data.batch import BagLoader
from mipl.errors import MiplNotice
from mipl.methods.base import Method
from mipl.metrics import approximated_accuracy, covering_rate, set_log_likelihood
from mipl.nn.attention import MAM
from mipl.nn.encoders import FeatureEncoder, Projection, Standardize
from mipl.nn.network import BagNetwork, Ensemble
from mipl.seeding import rng_for, seed_for
from mipl.training.checkpoint import History, last_epoch
from mipl.training.crossfit import (
    initial_weights,
    learns_from,
    mean_log_proba,
    member_log_proba,
    needs_first_stage,
    of_member,
    possible_members,
    train_members,
)
from mipl.training.distributed import ProcessGroup, randomness
from mipl.training.pretraining import has_images, train_on_images
from mipl.training.progress import Report
from mipl.training.recipe import REGULARISATIONS, Recipe
from mipl.training.signal import ENOUGH, signal_score
from mipl.training.trainer import Training, vote_table

NEARLY_PERFECT = math.log(0.98)  # mean out-of-fold log-likelihood of the candidate sets
VOTE_STEPS = 50  # of EM for the annotators' matrices from out-of-fold predictions
SAMPLE = 20_000  # instances that principal components are computed from
Build = Callable[[int, nn.Module | None], nn.Module]  # a seed, a network of the same bags to scale as


@dataclasses.dataclass(frozen=True)
class OutOfFold:
    """What members predict for the training bags that they did not learn from."""

    log_p: NDArray[np.float64]  # (m, k) the tempered mean of the members that left a bag out
    scaling: Scaling  # the temperature of the mean of all members
    signal: float  # standard errors by which predictions fit the bags' own sets better than others'
    quality: dict[str, float]  # what candidate sets or votes alone tell about the predictions
    posterior: NDArray[np.float64]  # (m, k) given the features and the sets or votes
    annotators: Estimate | None = (
        None  # confusion matrices (1, a, k, k) of the annotators, if there are votes
    )

    @property
    def learned(self) -> bool:
        """Whether the candidate sets of left-out bags are predicted better than by chance."""
        return self.signal >= ENOUGH


@dataclasses.dataclass(frozen=True)
class Fitted:
    """A trained network or ensemble, the recipe that was chosen, and what was seen on the way."""

    network: nn.Module
    recipe: Recipe
    history: History
    out_of_fold: OutOfFold | None = None  # none: a single network


def fit_network(
    method: Method,
    build: Build,
    bags: Bags,
    recipe: Recipe,
    seed: int,
    *,
    group: ProcessGroup,
    checkpoint: Path | None = None,
    report: Report | None = None,
) -> Fitted:
    """Train the networks that ``build`` makes, as the recipe has it.

    An ensemble of ``recipe.ensemble`` members is cross-fitted, as far as there are bags for it; of several
    weight decays the one whose out-of-fold predictions give the candidate sets the highest likelihood is
    chosen. A recipe with one member trains a single network on all bags.
    """
    recipe = dataclasses.replace(recipe, ensemble=possible_members(bags, recipe.ensemble))
    images = len(bags.feature_shape) > 1
    narrow = _reducing(build, bags, recipe.components, group.device)
    template = narrow(seed, None)  # its scaling is that of all members
    choices: tuple[tuple[float, float], ...] = REGULARISATIONS
    if recipe.weight_decay is not None or recipe.ensemble == 1 or images:
        choices = ((recipe.decay, 0.0),)
    first_stage = FirstStage(bags, learns_from(bags, recipe.ensemble, seed), template)
    best: Fitted | None = None
    for number, (decay, lowest_tau) in enumerate(choices):
        training = Training(
            method,
            dataclasses.replace(recipe, weight_decay=decay),
            seed,
            group,
            None if checkpoint is None else checkpoint / f"weight-decay-{decay:g}",
            _counted(report, number * recipe.epochs, decay if len(choices) > 1 else None),
        )
        found = cross_fit(training, narrow, bags, template, first_stage, lowest_tau)
        if best is None or _better(found, best):
            best = found
    assert best is not None
    for member in best.network.members if isinstance(best.network, Ensemble) else [best.network]:
        _unfold(member)
    if best.out_of_fold is not None and group.rank == 0:
        _warn(best.out_of_fold)
    return best


class FirstStage:
    """Initial pseudo-label weights where candidate sets are large, computed once for all weight decays."""

    def __init__(self, bags: Bags, seen: Tensor, template: nn.Module) -> None:
        self._bags, self._seen, self._template = bags, seen, template
        self._weights: Tensor | None = None

    def weights(self, training: Training) -> Tensor | None:
        """Return weights (e, m, k), or none where they are not needed or in the checkpoint already."""
        if training.checkpoint is not None and last_epoch(training.checkpoint) > 0:
            return None
        if self._weights is None and needs_first_stage(training, self._bags, self._template):
            self._weights = initial_weights(training, self._bags, self._seen, self._template)
        return self._weights


def cross_fit(
    training: Training,
    build: Build,
    bags: Bags,
    template: nn.Module,
    first_stage: FirstStage,
    lowest_tau: float = 0.0,
) -> Fitted:
    """Train a single network, or an ensemble and what its members predict for the bags they leave out.

    The temperature of MAM's attention stays at ``lowest_tau`` or above.
    """
    recipe, seed = training.recipe, training.seed
    seen = learns_from(bags, recipe.ensemble, seed)
    nets = [template]
    if recipe.ensemble > 1:
        nets = [build(seed_for("member", seed, e), template) for e in range(recipe.ensemble)]
    for part in (part for net in nets for part in net.modules() if isinstance(part, MAM)):
        part.keep_above(lowest_tau)
    if recipe.pretrain and has_images(template):
        histories = train_on_images(training, nets, bags, seen)
    else:
        initial = first_stage.weights(training)
        histories, _ = train_members(training, nets, bags, seen, recipe.epochs, initial)
    for e, net in enumerate(nets):
        own = bags if len(nets) == 1 else bags[np.flatnonzero(seen[e].numpy())]
        of_member(training, e, len(nets)).finish(net, own)
    if len(nets) == 1:
        return Fitted(nets[0], recipe, histories[0])
    log_p = member_log_proba(training.method, nets, bags, training.group.device)
    estimated = recipe.false_candidates == "estimate"
    found = out_of_fold(log_p, seen, torch.tensor(bags.candidate_sets), vote_table(bags), estimated)
    return Fitted(Ensemble(nets), recipe, _mean(histories), found)


def out_of_fold(
    log_p: Tensor, seen: Tensor, candidates: Tensor, votes: VoteTable | None = None, estimated: bool = False
) -> OutOfFold:
    """Return what log-probabilities (e, m, k) of members that saw ``seen`` (e, m) say of sets or votes.

    With votes, the confusion matrices of the annotators are estimated from the out-of-fold predictions first;
    P(votes | class) then replaces the candidate sets (m, k) in the temperature and the signal test. With
    ``estimated``, P(S | class) with a rate per pair of classes replaces the sets in the temperature, where a
    likelihood-ratio test rejects that false candidates come by chance.
    """
    left_out = 1.0 - seen
    mean = mean_log_proba(log_p, left_out.double())
    sets: Evidence = candidates.numpy()
    annotators, likelihood = None, candidates
    if votes is not None:
        annotators, log_votes = vote_evidence(mean, candidates, votes)
        sets, likelihood = log_votes.numpy(), log_votes.softmax(dim=1)
    score = signal_score(mean.exp(), likelihood)
    if score < ENOUGH:  # the highest temperature that the sets allow
        own = scaling = softest_scaling(mean.numpy(), sets)
    else:
        scaling = ensemble_scaling(log_p.numpy(), left_out.numpy().astype(np.bool_), sets)
        # the mean of the few that left a bag out has a temperature of its own
        own = ensemble_scaling(mean.numpy()[None], np.ones((1, len(sets)), dtype=np.bool_), sets)
    by_chance = None if votes is not None else chance_p_value(candidates.numpy())
    if estimated and by_chance is not None and by_chance <= LEVEL and score >= ENOUGH:
        rates = estimate_candidates(own.apply(mean.numpy()), candidates.numpy())
        likely = rates.log_likelihood(candidates.numpy())
        scaling = ensemble_scaling(log_p.numpy(), left_out.numpy().astype(np.bool_), likely)
    tempered = own.apply(mean.numpy())
    p, covered = np.exp(tempered), candidates.numpy()
    joint = with_evidence(tempered, sets)
    fits = set_log_likelihood(tempered, sets) if votes is None else float(log_sum(joint).mean())
    posterior = np.exp(joint - log_sum(joint)[:, None])
    right = float(posterior[np.arange(len(p)), p.argmax(axis=1)].mean())
    quality = {
        "signal": score,
        "set_log_likelihood": fits,
        "covering_rate": covering_rate(p, covered),
        "approximated_accuracy": approximated_accuracy(p, covered) if votes is None else right,
        "mean_confidence": float(p.max(axis=1).mean()),
        "temperature": scaling.temperature or 1.0,
    }
    if by_chance is not None:
        quality["chance_p_value"] = by_chance
    return OutOfFold(tempered, scaling, score, quality, posterior, annotators)


def vote_evidence(log_p: Tensor, candidates: Tensor, votes: VoteTable) -> tuple[Estimate, Tensor]:
    """Return the annotators' matrices by EM from log-probabilities (m, k), and log P(votes | class) (m, k).

    A bag without votes has the indicator of its candidate set.
    """
    model = AnnotatorModel(votes)
    alone = model.from_votes()
    found = model.fit(log_p.double()[None], alone.confusion, alone.strength, VOTE_STEPS)
    log_votes = votes.log_likelihood(found.confusion)[0]
    return found, log_votes.masked_fill(~votes.voted[:, None] & ~candidates, -torch.inf)


def _better(found: Fitted, best: Fitted) -> bool:
    assert found.out_of_fold is not None
    assert best.out_of_fold is not None
    name = "set_log_likelihood"
    return found.out_of_fold.quality[name] > best.out_of_fold.quality[name]


def _mean(histories: Sequence[History]) -> History:
    """Return the mean over members of what all have, epoch by epoch."""
    names = set.intersection(*(set(each) for each in histories))
    return {
        name: np.mean([each[name] for each in histories], axis=0).tolist()
        for name in sorted(names)
        if len({len(each[name]) for each in histories}) == 1
    }


def _counted(report: Report | None, before: int, decay: float | None) -> Report | None:
    """Return a report that counts the epochs of all weight decays, and names the present one."""
    if report is None:
        return None

    def say(done: int, note: str = "") -> None:
        report(before + done, note if decay is None else f"weight decay {decay:g}, {note}")

    return say


def _warn(found: OutOfFold) -> None:
    """Warn where nothing was learned, and where candidate sets do not determine the temperature."""
    temperature = found.quality["temperature"]
    if not found.learned:
        text = (
            "The model has learned nothing: predictions for bags that a network was not trained on fit the "
            f"candidate sets of these bags no better than those of other bags ({found.signal:.1f} standard "
            "errors above). The probabilities are kept near chance. Check that features and candidate sets "
            "belong to the same bags; then try more epochs or a lower lr."
        )
    elif found.quality["set_log_likelihood"] > NEARLY_PERFECT:
        return  # the sets are predicted so well that a low temperature is no surprise
    elif not 1.01 * ENSEMBLE_RANGE[0] < temperature < 0.99 * ENSEMBLE_RANGE[1]:
        text = (
            f"The candidate sets ask for a temperature beyond {temperature:.3g}, the limit of what is "
            "believed: false candidates may follow the model's own doubts. Calibrate by true labels of some "
            "bags before you rely on the probabilities."
        )
    else:
        return
    warnings.warn(text, MiplNotice, stacklevel=5)


def _reducing(build: Build, bags: Bags, components: int, device: torch.device) -> Build:
    """Return a ``build`` whose networks of wide vectors train on principal components, computed once."""
    axes: list[Tensor] = []

    def narrow(seed: int, like: nn.Module | None = None) -> nn.Module:
        net = build(seed, like)
        if _is_wide(net, components):
            if not axes:
                axes.append(principal_axes(bags, net.scaling, components, device))  # type: ignore[arg-type]
            _reduce(net, axes[0], seed)  # type: ignore[arg-type]
        return net

    return narrow


def principal_axes(bags: Bags, scaling: Standardize, components: int, device: torch.device) -> Tensor:
    """Return axes (d, components) of the standardised training instances, scaled to a mean square of 1.

    Of wide vectors most directions vary little and carry noise, which a network learns to tell single bags
    apart by. Candidate sets are not read.
    """
    rows = bags.rows()
    rows = np.sort(rng_for("principal axes").permutation(rows)[:SAMPLE])
    with torch.no_grad():
        x = scaling.to(device)(BagLoader(bags, device).read(rows)).double()  # (n, d)
        axes = torch.linalg.eigh(x.T @ x).eigenvectors.flip(1)[:, :components]
        spread = (x @ axes).square().mean().sqrt()
        scaled: Tensor = (axes / spread.clamp(min=1e-12)).float()
        return scaled


def _is_wide(net: nn.Module, components: int) -> bool:
    return (
        type(net) is BagNetwork
        and isinstance(net.scaling, Standardize)
        and type(net.encoder) is FeatureEncoder
        and 0 < components < len(net.scaling.mean)
    )


def _reduce(net: BagNetwork, axes: Tensor, seed: int) -> None:
    """Make a network on features (·, d) one on their principal components, in place."""
    encoder = net.encoder
    assert isinstance(encoder, FeatureEncoder)
    assert isinstance(net.scaling, Standardize)
    with randomness(ProcessGroup(), "reduce", seed):
        net.encoder = FeatureEncoder(axes.shape[1], encoder[0].out_features, encoder[2].p)  # type: ignore[arg-type]
    net.scaling = Projection(net.scaling.to(axes.device), axes)


def _unfold(net: nn.Module) -> nn.Module:
    """Make a reduced network one on all features again, in place, with the same predictions."""
    if isinstance(net, BagNetwork) and isinstance(net.scaling, Projection):
        net.scaling, net.encoder[0] = net.scaling.fold(net.encoder[0])  # type: ignore[index,operator]
    return net
