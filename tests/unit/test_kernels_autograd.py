"""Two doors to one kernel: every kind of derivative in eager mode, the compiler, the exporter."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, hessian, jacrev, jvp, vmap

from rotary import Rotation, rotate
from rotary.kernels.dispatch import rotate_all

LAYOUTS = ("interleaved", "half")
BACKENDS = ("cpu", "plain")
L, P, D = 3, 3, 7


def tables(*shape):
    angles = torch.empty(*shape, P, dtype=torch.float64).uniform_(-3, 3)
    return angles.cos(), angles.sin()


def wide(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.fixture(params=LAYOUTS)
def layout(request):
    return request.param


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_and_gradgradcheck_of_a_pair(layout, backend):
    cos, sin = tables(2, L)

    def turn(q, k):
        options = {"layout": layout, "amplitude": 1.5, "backend": backend}
        return rotate_all((q, k), cos, sin, **options)

    q, k = wide(2, 2, L, D).requires_grad_(), wide(2, 1, L, D).requires_grad_()
    assert gradcheck(turn, (q, k), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(turn, (q, k), check_batched_grad=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_is_the_opposite_turn(layout, backend):
    """With a random cotangent, in low precision and with expanded gradients too."""
    cos, sin = (table.float() for table in tables(L))
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, L, D, dtype=dtype).requires_grad_()
        out = rotate(x, cos, sin, layout=layout, amplitude=1.5, backend=backend)
        for cotangent in (torch.randn_like(x), torch.ones((), dtype=dtype).expand_as(x)):
            (got,) = torch.autograd.grad(out, x, cotangent, retain_graph=True)
            right = rotate(cotangent, cos, -sin, layout=layout, amplitude=1.5, backend=backend)
            exact = {"rtol": 0, "atol": 0} if backend == "cpu" else {}
            torch.testing.assert_close(got, right, **exact)


def test_tables_that_need_a_gradient_get_it(layout):
    angles = wide(2, L, P).requires_grad_()
    x = wide(2, 2, L, D).requires_grad_()
    assert gradcheck(
        lambda x, a: rotate(x, a.cos(), a.sin(), layout=layout, amplitude=1.5), (x, angles)
    )
    amplitude = wide(2).requires_grad_()
    cos, sin = tables(L)
    assert gradcheck(lambda a: rotate(x, cos, sin, layout=layout, amplitude=a), (amplitude,))


def test_a_result_needs_a_gradient_only_where_its_own_x_does():
    cos, sin = tables(L)
    q, k = rotate_all((wide(2, L, D).requires_grad_(), wide(2, L, D)), cos, sin, layout="half")
    assert q.requires_grad
    assert not k.requires_grad
    with torch.no_grad():
        assert not rotate(wide(2, L, D).requires_grad_(), cos, sin, layout="half").requires_grad


def test_a_result_that_nobody_used_costs_no_backward():
    cos, sin = tables(L)
    q, k = wide(2, L, D).requires_grad_(), wide(2, L, D).requires_grad_()
    turned, _ = rotate_all((q, k), cos, sin, layout="half")
    turned.sum().backward()
    assert q.grad is not None
    assert k.grad is None


@pytest.mark.parametrize("backend", ["auto", "plain"])
class TestTransforms:
    """``torch.func`` on a kernel against the same on plain formulas."""

    def turn(self, layout, backend):
        return lambda x, cos, sin: rotate(x, cos, sin, layout=layout, backend=backend)

    @pytest.mark.parametrize("in_dims", [(0, None, None), (2, 0, 0), (None, 1, 1), (1, 0, None)])
    def test_vmap(self, layout, backend, in_dims):
        turn = self.turn(layout, backend)
        for table_shape in ((L,), (2, L), (2, 2, L)):
            x, (cos, sin) = wide(2, 2, L, D), tables(*table_shape)

            def spread(t, dim):
                return t if dim is None else torch.stack((t, t + 1, t - 2), dim=dim)

            given = [spread(t, dim) for t, dim in zip((x, cos, sin), in_dims, strict=True)]
            got = vmap(turn, in_dims)(*given)
            right = [
                turn(*(t if d is None else t.select(d, i) for t, d in zip(given, in_dims)))  # noqa: B905
                for i in range(3)
            ]
            torch.testing.assert_close(got, torch.stack(right), rtol=0, atol=1e-14)

    def test_jvp_of_x_and_of_the_angles(self, layout, backend):
        turn = self.turn(layout, backend)
        angles, x = wide(L, P), wide(2, L, D)
        moved = wide(L, P), wide(2, L, D)

        def f(a, x):
            return turn(x, a.cos(), a.sin())

        value, got = jvp(f, (angles, x), moved)
        step = 1e-6
        after = f(angles + step * moved[0], x + step * moved[1])
        before = f(angles - step * moved[0], x - step * moved[1])
        torch.testing.assert_close(got, (after - before) / (2 * step), rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(value, f(angles, x))

    def test_dual_numbers(self, layout, backend):
        (cos, sin), x, tangent = tables(L), wide(2, L, D), wide(2, L, D)
        with forward_ad.dual_level():
            out = self.turn(layout, backend)(forward_ad.make_dual(x, tangent), cos, sin)
            got = forward_ad.unpack_dual(out).tangent
        right = rotate(tangent, cos, sin, layout=layout, backend="plain")
        torch.testing.assert_close(got, right)

    def test_grad_hessian_and_their_nesting(self, layout, backend):
        cos, sin = tables(L)
        turn = self.turn(layout, backend)
        weight = wide(2, L, D)

        def loss(x):
            return (turn(x, cos, sin) * weight).sum().sin()

        def plain_loss(x):
            return (rotate(x, cos, sin, layout=layout, backend="plain") * weight).sum().sin()

        x = wide(4, 2, L, D)
        for transform in (grad, lambda f: vmap(grad(f)), hessian, jacrev):
            given = x if transform not in (grad, hessian, jacrev) else x[0]
            got, right = transform(loss)(given), transform(plain_loss)(given)
            assert got.abs().max() > 0
            torch.testing.assert_close(got, right)

    def test_gradient_of_frequencies_through_vmap(self, layout, backend):
        """grad of vmap: only an inner level sees that the tables have a gradient."""
        turn = self.turn(layout, backend)
        positions = torch.arange(L, dtype=torch.float64)
        x = wide(4, L, D)

        def loss(frequencies, turn=turn):
            angles = positions[:, None] * frequencies
            return vmap(lambda each: turn(each, angles.cos(), angles.sin()))(x).pow(3).sum()

        frequencies = wide(P)
        got = grad(loss)(frequencies)
        right = torch.autograd.functional.jacobian(loss, frequencies)
        assert got.abs().max() > 0
        torch.testing.assert_close(got, right)


@pytest.mark.parametrize("name", ["turn", "turn_pair", "turn_", "rotate"])
def test_opcheck(name, layout):
    cos, sin = tables(L)
    operator = getattr(torch.ops.rotary, name).default
    for x in (wide(2, 2, L, D), wide(2, L, 2, D).transpose(1, 2), wide(2, 2, L, D + 2)[..., 1:-1]):
        xs = (x, x[:, :1].clone()) if name == "turn_pair" else (x,)
        arguments = (*xs, cos, sin, layout == "interleaved", -2, 1.5, False)
        torch.library.opcheck(operator, arguments)
    if name == "rotate":
        needy = (wide(2, 2, L, D).requires_grad_(), *arguments[1:])
        torch.library.opcheck(operator, needy)


@pytest.mark.compiles
@pytest.mark.parametrize("backend", ["auto", "cpu", "plain"])
def test_compile_without_a_break_forward_and_backward(layout, backend):

    def loss(q, k, angles):
        rotation = Rotation(angles.cos(), angles.sin(), layout, 1.5)
        q, k = rotation(q * 2, k, backend=backend)
        return (q @ k.mT).sin().sum()

    q, k = wide(2, 2, 5, 8).requires_grad_(), wide(2, 2, 5, 8).requires_grad_()
    compiled = torch.compile(loss, fullgraph=True)
    angles = wide(5, P)
    got = torch.autograd.grad(compiled(q, k, angles), (q, k))
    right = torch.autograd.grad(loss(q, k, angles), (q, k))
    torch.testing.assert_close(got, right)


@pytest.mark.compiles
def test_compiled_in_place(layout):
    cos, sin = tables(L)

    @torch.compile(fullgraph=True)
    def turn(x):
        y = x + 1
        return rotate(y, cos, sin, layout=layout, inplace=True), y

    x = wide(2, L, D)
    right = rotate(x + 1, cos, sin, layout=layout)
    for got in turn(x):
        torch.testing.assert_close(got, right)


@pytest.mark.compiles
def test_export_has_nothing_of_ours_in_it(layout):
    class Turn(torch.nn.Module):
        def forward(self, x, angles):
            return Rotation(angles.cos(), angles.sin(), layout, 1.5)(x)

    x, angles = torch.randn(2, 2, 5, 8), torch.randn(5, P)
    length = torch.export.Dim("length", min=2, max=64)
    program = torch.export.export(Turn(), (x, angles), dynamic_shapes=({2: length}, {0: length}))
    assert not any("rotary" in str(node.target) for node in program.graph.nodes)
    longer, more = torch.randn(2, 2, 9, 8), torch.randn(9, P)
    torch.testing.assert_close(program.module()(longer, more), Turn()(longer, more))
