"""Dropout with numpy's numbers: its rate, its gradient, and its seed."""

import pytest
import torch
from torch import Tensor, nn

from xltraining.loop.fast_dropout import FastDropout, use_fast_dropout

SHAPE = (3, 100, 101)  # not a multiple of four


def dropped(p: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        given = (1 + torch.rand(SHAPE)).requires_grad_()
        result = FastDropout(p).train()(given)
        (gradient,) = torch.autograd.grad(result.sum(), given)
    return given, result, gradient


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_elements_are_dropped_at_the_rate_and_the_others_are_scaled(p: float) -> None:
    given, result, gradient = dropped(p)
    kept = result != 0
    assert kept.float().mean().item() == pytest.approx(1 - p, abs=5 * (p * (1 - p) / given.numel()) ** 0.5)
    assert torch.allclose(result[kept], given[kept] / (1 - p), rtol=1e-3)
    assert torch.equal(gradient != 0, kept)
    assert torch.allclose(gradient[kept], torch.full_like(gradient[kept], 1 / (1 - p)), rtol=1e-3)
    assert torch.equal(result[kept], given[kept] * gradient[kept][0])


def test_numbers_follow_the_seed_of_torch() -> None:
    assert torch.equal(dropped(0.3)[1], dropped(0.3)[1])
    assert not torch.equal(dropped(0.3)[1] != 0, dropped(0.3, seed=1)[1] != 0)
    torch.manual_seed(5)
    module = FastDropout(0.5).train()
    first, second = (module(torch.ones(SHAPE)) for _ in range(2))
    assert not torch.equal(first, second)


def test_neighbours_are_independent() -> None:
    kept = (dropped(0.5)[1] != 0).flatten().float() - 0.5
    for distance in (1, 2, 3, 4, 101):
        assert abs((kept[distance:] * kept[:-distance]).mean().item()) < 0.25 * 5 / kept.numel() ** 0.5


def test_evaluation_and_small_tensors_are_those_of_torch() -> None:
    large, small = torch.ones(SHAPE), torch.ones(9)
    assert FastDropout(0.5).eval()(large) is large
    assert FastDropout(0.0).train()(large) is large
    torch.manual_seed(1)
    found = FastDropout(0.5).train()(small)
    torch.manual_seed(1)
    assert torch.equal(found, nn.Dropout(0.5).train()(small))


def test_a_model_changes_its_dropout_in_place() -> None:
    shared = nn.Dropout(0.1)
    model = nn.Sequential(nn.Linear(2, 2), shared, nn.Sequential(shared, nn.Dropout2d(0.1)))
    use_fast_dropout(model)
    assert type(model[1]) is FastDropout and model[1] is model[2][0]
    assert type(model[2][1]) is nn.Dropout2d
