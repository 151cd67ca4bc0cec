"""What a record says of its run's time."""

from hypothesis import given
from hypothesis import strategies as st

from mipl.experiments.runner import epoch_seconds


@given(st.integers(0, 80), st.integers(2, 30), st.floats(0.01, 10), st.integers(0, 20))
def test_an_epoch_takes_what_lies_between_the_ends_of_two(steps, epochs, seconds, again):
    """Whatever is marked before the first, and where a second attempt starts from the beginning."""
    marks = [(0, 100.0 * i) for i in range(steps)]
    now = 100.0 * steps
    for tries in (again, epochs):
        marks.append((0, now))
        marks += [(done, now + done * seconds) for done in range(1, tries + 1)]
        now += 1000.0
    assert abs(epoch_seconds(marks) - seconds) < 1e-6


def test_without_two_epochs_nothing_is_said():
    assert epoch_seconds([]) is None
    assert epoch_seconds([(0, 1.0), (0, 2.0), (1, 3.0)]) is None
