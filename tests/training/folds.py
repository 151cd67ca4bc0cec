"""The members that are cross-fitted before the networks that predict, for tests."""

from mipl.training.crossfit import folds_of, learns_from
from mipl.training.distributed import ProcessGroup
from mipl.training.fit import FirstStage, _reducing, train_networks
from mipl.training.trainer import Training


def cross_fitted(model, bags):
    """Return the members that are cross-fitted for a model, and which bags each learns from (e, m)."""
    bags, method, recipe, seed, build = model._begin(bags, None, None)
    training = Training(method, recipe, seed, ProcessGroup())
    build = _reducing(build, bags, recipe.components, training.group.device)
    template = build(seed, None)
    seen = learns_from(bags, folds_of(bags, recipe.ensemble), seed)
    first_stage = FirstStage(bags, seen, template)
    return train_networks(training, build, bags, template, seen, first_stage, 0.0)[1], seen
