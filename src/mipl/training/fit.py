"""From bags to a trained model: cross-fit -> select -> calibrate -> train on all bags -> report."""

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
from mipl.nn.network import AggregatedNetwork, BagNetwork, Ensemble, InstanceNetwork
from mipl.seeding import rng_for, seed_for
from mipl.training.checkpoint import History, last_epoch
from mipl.training.crossfit import (
    folds_of,
    initial_weights,
    learns_from,
    mean_log_proba,
    member_log_proba,
    needs_first_stage,
    of_member,
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
    scaling: Scaling  # the temperature of the mean of the networks that predict
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

    First members are cross-fitted, once for each regularisation: their predictions for left-out bags choose
    the regularisation and the temperature, and show whether anything can be learned. Then
    ``recipe.ensemble`` networks are trained on all bags: their mean predicts. A recipe with one network, or
    bags too few to be divided, train that network alone.
    """
    if folds_of(bags, recipe.ensemble) == 1:
        recipe = dataclasses.replace(recipe, ensemble=1)
    narrow = _reducing(build, bags, recipe.components, group.device)
    template = narrow(seed, None)  # its scaling is that of all networks
    training = Training(method, recipe, seed, group, checkpoint, report)
    if recipe.ensemble == 1:
        alone = dataclasses.replace(training, recipe=dataclasses.replace(recipe, weight_decay=recipe.decay))
        chosen = Selected(alone, 0.0)
    else:
        chosen = select(training, narrow, bags, template)
    everything = torch.ones(recipe.ensemble, len(bags))
    histories, nets = train_networks(
        chosen.training, narrow, bags, template, everything, FirstStage(bags, everything, template),
        chosen.lowest_tau,
    )  # fmt: skip
    for net in nets:
        _unfold(net)
    if chosen.out_of_fold is not None and group.rank == 0:
        _warn(chosen.out_of_fold)
    network = Ensemble(nets) if len(nets) > 1 else nets[0]
    return Fitted(network, chosen.training.recipe, _mean(histories), chosen.out_of_fold)


@dataclasses.dataclass(frozen=True)
class Selected:
    """How the networks that predict are to be trained, and what cross-fitting found."""

    training: Training
    lowest_tau: float  # of MAM's attention
    out_of_fold: OutOfFold | None = None


def select(training: Training, build: Build, bags: Bags, template: nn.Module) -> Selected:
    """Cross-fit members with each regularisation; choose by the likelihood of left-out candidate sets."""
    recipe, seed, folder = training.recipe, training.seed, training.checkpoint
    choices = regularisations(recipe, bags)
    seen = learns_from(bags, folds_of(bags, recipe.ensemble), seed)
    first_stage = FirstStage(bags, seen, template)
    best: Selected | None = None
    for number, (decay, lowest_tau) in enumerate(choices):
        tried = dataclasses.replace(
            training,
            recipe=dataclasses.replace(recipe, weight_decay=decay),
            checkpoint=None if folder is None else folder / f"weight-decay-{decay:g}",
            report=_counted(training.report, number * recipe.epochs, f"folds, weight decay {decay:g}"),
        )
        _, nets = train_networks(tried, build, bags, template, seen, first_stage, lowest_tau)
        log_p = member_log_proba(training.method, nets, bags, training.group.device)
        sets, estimated = torch.tensor(bags.candidate_sets), recipe.false_candidates == "estimate"
        found = out_of_fold(log_p, seen, sets, recipe.ensemble, vote_table(bags), estimated)
        if best is None or _better(found, best.out_of_fold):
            best = Selected(tried, lowest_tau, found)
    assert best is not None
    final = dataclasses.replace(
        best.training,
        seed=seed_for("final", seed) % 2**32,
        checkpoint=None if folder is None else folder / "final",
        report=_counted(training.report, len(choices) * recipe.epochs, "all bags"),
    )
    return dataclasses.replace(best, training=final)


def regularisations(recipe: Recipe, bags: Bags) -> tuple[tuple[float, float], ...]:
    """Return the pairs of weight decay and lowest temperature of MAM's attention that are cross-fitted."""
    if folds_of(bags, recipe.ensemble) == 1:
        return ()
    if recipe.weight_decay is not None or len(bags.feature_shape) > 1:
        return ((recipe.decay, 0.0),)
    return REGULARISATIONS


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


def train_networks(
    training: Training,
    build: Build,
    bags: Bags,
    template: nn.Module,
    seen: Tensor,
    first_stage: FirstStage,
    lowest_tau: float,
) -> tuple[list[History], list[nn.Module]]:
    """Train networks, each on the bags that it learns from by ``seen`` (e, m); return their histories too.

    A single network is ``template`` itself. The temperature of MAM's attention stays at ``lowest_tau`` or
    above.
    """
    recipe, seed = training.recipe, training.seed
    nets = [template]
    if len(seen) > 1:
        nets = [build(seed_for("member", seed, e), template) for e in range(len(seen))]
    for part in (part for net in nets for part in net.modules() if isinstance(part, MAM)):
        part.keep_above(lowest_tau)
    if recipe.pretrain and has_images(template):
        histories = train_on_images(training, nets, bags, seen)
    else:
        initial = first_stage.weights(training)
        histories, _ = train_members(training, nets, bags, seen, recipe.epochs, initial)
    for e, net in enumerate(nets):
        own = bags if bool(seen[e].all()) else bags[np.flatnonzero(seen[e].numpy())]
        of_member(training, e, len(nets)).finish(net, own)
    return histories, nets


def out_of_fold(
    log_p: Tensor,
    seen: Tensor,
    candidates: Tensor,
    networks: int,
    votes: VoteTable | None = None,
    estimated: bool = False,
) -> OutOfFold:
    """Return what log-probabilities (e, m, k) of members that saw ``seen`` (e, m) say of sets or votes.

    The temperature is that of the mean of as many ``networks`` as will predict. With votes, the confusion
    matrices of the annotators are estimated from the out-of-fold predictions first; P(votes | class) then
    replaces the candidate sets (m, k) in the temperature and the signal test. With ``estimated``,
    P(S | class) with a rate per pair of classes replaces the sets in the temperature, where a
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
        scaling = ensemble_scaling(log_p.numpy(), left_out.numpy().astype(np.bool_), sets, networks)
        # the mean of the few that left a bag out has a temperature of its own
        own = ensemble_scaling(mean.numpy()[None], np.ones((1, len(sets)), dtype=np.bool_), sets, 1)
    by_chance = None if votes is not None else chance_p_value(candidates.numpy())
    if estimated and by_chance is not None and by_chance <= LEVEL and score >= ENOUGH:
        rates = estimate_candidates(own.apply(mean.numpy()), candidates.numpy())
        likely = rates.log_likelihood(candidates.numpy())
        scaling = ensemble_scaling(log_p.numpy(), left_out.numpy().astype(np.bool_), likely, networks)
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


def _better(found: OutOfFold, best: OutOfFold | None) -> bool:
    name = "set_log_likelihood"
    return best is None or found.quality[name] > best.quality[name]


def _mean(histories: Sequence[History]) -> History:
    """Return the mean over members of what all have, epoch by epoch."""
    names = set.intersection(*(set(each) for each in histories))
    return {
        name: np.mean([each[name] for each in histories], axis=0).tolist()
        for name in sorted(names)
        if len({len(each[name]) for each in histories}) == 1
    }


def _counted(report: Report | None, before: int, stage: str) -> Report | None:
    """Return a report that counts the epochs of all stages, and names the present one."""
    if report is None:
        return None

    def say(done: int, note: str = "") -> None:
        report(before + done, f"{stage}, {note}" if note else stage)

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
        type(net) in (BagNetwork, AggregatedNetwork)
        and isinstance(net.scaling, Standardize)
        and type(net.encoder) is FeatureEncoder
        and 0 < components < len(net.scaling.mean)
    )


def _reduce(net: InstanceNetwork, axes: Tensor, seed: int) -> None:
    """Make a network on features (·, d) one on their principal components, in place."""
    encoder = net.encoder
    assert isinstance(encoder, FeatureEncoder)
    assert isinstance(net.scaling, Standardize)
    with randomness(ProcessGroup(), "reduce", seed):
        net.encoder = FeatureEncoder(axes.shape[1], encoder[0].out_features, encoder[2].p)  # type: ignore[arg-type]
    net.scaling = Projection(net.scaling.to(axes.device), axes)


def _unfold(net: nn.Module) -> nn.Module:
    """Make a reduced network one on all features again, in place, with the same predictions."""
    if isinstance(net, InstanceNetwork) and isinstance(net.scaling, Projection):
        net.scaling, net.encoder[0] = net.scaling.fold(net.encoder[0])  # type: ignore[index,operator]
    return net
