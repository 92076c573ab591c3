"""Each Triton kernel says what the plain function of `arithmetic` says, and its gradients too.

On a GPU the real kernels; elsewhere Triton's interpreter, where Triton is installed at all.
"""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

INTERPRETED = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}

# Triton reads it when it is imported, when a kernel is defined and when one runs; other tests must not.
with pytest.MonkeyPatch.context() as patch:
    for name, value in INTERPRETED.items():
        patch.setitem(os.environ, name, value)
    from shakedown.drafter import arithmetic, kernels_loss
    from shakedown.drafter.kernels_layer import Gate, Join, Turn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    for name, value in INTERPRETED.items():
        monkeypatch.setenv(name, value)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def compared(plain, kernel, inputs, *, tolerance=2e-5):
    """Both on the same inputs: outputs and the gradients of a random weighting of them."""
    results = []
    for function, device in ((plain, "cpu"), (kernel, DEVICE)):
        leaves = [x.detach().clone().to(device).requires_grad_(x.is_floating_point()) for x in inputs]
        outputs = function(*leaves)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        outputs = [out for out in outputs if out.numel()]
        sum((out * random(*out.shape).to(device)).sum() for out in outputs).backward()
        gradients = [leaf.grad for leaf in leaves if leaf.requires_grad and leaf.grad is not None]
        results.append([x.detach().cpu() for x in [*outputs, *gradients]])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("turned", "plain", "width"), [(3, 0, 8), (2, 2, 12), (2, 2, 64)])
def test_turning(turned, plain, width):
    rows, heads = 21, turned + plain
    angles = torch.randn(2, 40, 1, width // 2)
    at = torch.randint(40, (rows,))

    def plainly(x, token):
        return arithmetic.turn(x, token, at, (angles[0], angles[1]), turned=turned, width=width)

    def by_kernel(x, token):
        cos, sin = angles.to(x.device)
        return Turn.apply(x, token, at.to(x.device), cos, sin, turned, width)

    compared(plainly, by_kernel, [random(rows, heads * width), random(rows, heads * width)])


@pytest.mark.parametrize(("heads", "kv_heads", "width"), [(4, 2, 16), (3, 3, 8), (9, 3, 12)])
@pytest.mark.parametrize("steps", [1, 3])
def test_joining_own_keys(heads, kv_heads, width, steps):
    rows = 11
    own = [random(rows, kv_heads, width) for _ in range(2 * steps)]

    def plainly(out, log_sum, queries, *own):
        return arithmetic.join(out, log_sum, queries, own[:steps], own[steps:], 0.3)

    def by_kernel(out, log_sum, queries, *own):
        return Join.apply(out, log_sum, queries, 0.3, steps, *own)

    first = [random(rows, heads, width), random(rows, heads) * 2, random(rows, heads, width)]
    compared(plainly, by_kernel, [*first, *own])


def test_joining_takes_strided_attention():
    rows, heads, width = 5, 4, 8
    out, log_sum = random(heads, rows, width).transpose(0, 1), random(heads, rows).T
    queries, key, value = random(rows, heads, width), random(rows, 2, width), random(rows, 2, width)
    wanted = arithmetic.join(out, log_sum, queries, [key], [value], 0.3)
    given = [x.to(DEVICE) for x in (queries, key, value)]
    strided = out.to(DEVICE), log_sum.to(DEVICE)
    torch.testing.assert_close(Join.apply(*strided, given[0], 0.3, 1, *given[1:]).cpu(), wanted)


@pytest.mark.parametrize("width", [10, 2049])
def test_the_gated_product(width):
    compared(arithmetic.gated, Gate.apply, [random(4, 2 * width)])


@pytest.mark.parametrize("width", [5, 130, 5000])
def test_summing_up_rows_of_logits(width):
    logits = random(7, width) * 4
    logits[3, 2] = logits[3, 4] = 100.0
    found = kernels_loss.summarise(logits.to(DEVICE))
    for one, wanted in zip(found, arithmetic.summarise(logits), strict=True):
        torch.testing.assert_close(one.cpu(), wanted)


@pytest.mark.parametrize("width", [5, 130, 5000])
def test_scoring_rows_in_place(width):
    logits, wanted = random(9, width) * 3, random(12, width) * 2
    _, choice, wanted_sum = arithmetic.summarise(wanted)
    rows, weights = torch.randint(12, (9,)), torch.rand(9)
    choice[rows[0]] = logits[0].argmax()
    given = [logits.clone(), wanted, wanted_sum, choice, rows, weights]
    moved = [x.clone().to(DEVICE) for x in given]
    told = arithmetic.score(*given, differentiate=True)
    found = kernels_loss.score(*moved, differentiate=True)
    assert told[1].any()
    torch.testing.assert_close(found[0].cpu(), told[0], rtol=1e-5, atol=1e-5)
    assert torch.equal(found[1].cpu(), told[1])
    torch.testing.assert_close(moved[0].cpu(), given[0], rtol=1e-5, atol=1e-5)
