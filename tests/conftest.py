"""What every test run shares: shape enforcement on demand, a fixed profile for drawn examples."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("rotary", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("rotary")


def pytest_addoption(parser):
    parser.addoption(
        "--enforce-shapes",
        action="store_true",
        help="check the shapes in the library's annotations at run time",
    )


def pytest_configure(config):
    if config.getoption("--enforce-shapes"):
        from jaxtyping import install_import_hook

        install_import_hook("rotary", "typechecker.check")


@pytest.fixture
def wrong_types(request):
    """For tests of errors about types: where annotations are enforced, the checker comes first."""
    if request.config.getoption("--enforce-shapes"):
        pytest.skip("arguments of a wrong type are stopped by the checker of annotations")


@pytest.fixture
def timed(request):
    """For tests that compare times: the checker of annotations costs more than what it checks."""
    if request.config.getoption("--enforce-shapes"):
        pytest.skip("where annotations are enforced, times say nothing")


@pytest.fixture(autouse=True)
def _same_draws():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def exact_onnxruntime():
    """For tests that run what we export, where angles are float64; skips visibly without."""
    onnxruntime, onnx = pytest.importorskip("onnxruntime"), pytest.importorskip("onnx")
    vector = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.DOUBLE, [1]) for n in "xy"]
    cosine = onnx.helper.make_node("Cos", ["x"], ["y"])
    graph = onnx.helper.make_graph([cosine], "cosine", vector[:1], vector[1:])
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    try:
        onnxruntime.InferenceSession(model.SerializeToString())
    except Exception:
        pytest.skip(f"onnxruntime {onnxruntime.__version__} has no cosine in float64")


@pytest.fixture(scope="session")
def shared_data():
    """A function that gives the path of a file of ../shared/data, or skips visibly."""
    root = os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data")

    def path(name):
        full = os.path.join(root, name)
        if not os.path.exists(full):
            pytest.skip(f"needs ../shared/data/{name}")
        return full

    return path
