"""Quantiles of Student's t against published tables, and against the distribution's own density."""

import math
import statistics

import pytest
import torch

from sinkscope.statistics.intervals import student, within

TABLE = {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 9: 2.26216, 10: 2.22814, 30: 2.04227, 99: 1.98422}


@pytest.mark.parametrize(("degrees", "quantile"), TABLE.items())
def test_quantiles_are_those_of_the_tables(degrees, quantile):
    assert student(degrees) == pytest.approx(quantile, rel=2e-6)


def test_with_many_degrees_it_is_the_normal_distribution_and_with_none_it_is_undefined():
    assert student(100_000) == pytest.approx(statistics.NormalDist().inv_cdf(0.975), rel=1e-4)
    assert math.isnan(student(0))


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 7, 8])
@pytest.mark.parametrize("t", [0.0, 0.3, 1.0, 2.5, 9.0])
def test_the_sums_are_the_integral_of_the_density(degrees, t):
    at = torch.linspace(-t, t, 20_001, dtype=torch.float64)
    density = torch.distributions.StudentT(torch.tensor(float(degrees), dtype=torch.float64)).log_prob(at).exp()
    assert within(t, degrees) == pytest.approx(float(torch.trapezoid(density, at)), abs=1e-6)
