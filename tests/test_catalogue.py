"""Frameworks as data: recognised by class, without importing them; extended by entry points."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from opwright import catalogue
from opwright.catalogue import Array, FrameworkInfo
from opwright.errors import DuplicateError, RegistrationError, RegistrationTypeError, RegistrationValueError


def run(script):
    """Run a script in a fresh interpreter; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def toy():
    """A framework of the test's own: a loaded package ``toyarrays`` with a class and an annotation."""
    package = ModuleType("toyarrays")
    package.Grid = type("Grid", (), {"__module__": "toyarrays"})
    package.Kind = type("Kind", (), {"__module__": "toyarrays"})
    sys.modules["toyarrays"] = package
    yield SimpleNamespace(
        package=package,
        info=FrameworkInfo(
            "toy",
            package="toyarrays",
            module="toyarrays.opwright",
            array_classes=(("toyarrays", "Grid"),),
            annotations=(("toyarrays", "Grid", "toy"),),
            types=(("toyarrays", "Kind", "ScalarType"),),
            device_types=("cpu", "toydevice"),
            shares=("cpu",),
        ),
    )
    del sys.modules["toyarrays"]


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """Undo what a test registers, and let each read the entry points anew."""
    monkeypatch.setattr(catalogue, "_infos", catalogue._BUILT_IN)
    monkeypatch.setattr(catalogue, "_entry_points_read", False)


def offer(monkeypatch, *offers):
    """Make ``entry_points`` return these, each a name, a value and what it loads."""

    class Offered(EntryPoint):
        def load(self):
            found = loads[self.name]
            if isinstance(found, Exception):
                raise found
            calls.append(self.name)
            return found

    calls, loads, points = [], {}, []
    for name, value in offers:
        loads[name] = value
        point = Offered(name, f"{name}_for_opwright:INFO", catalogue.GROUP)
        points.append(point._for(SimpleNamespace(name=f"{name}-dist")))
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: points if group == catalogue.GROUP else []
    )
    return calls


# ------------------------------------------------------------------------------------------ imports


def test_the_catalogue_imports_nothing_beyond_the_bare_language():
    heavy = "dataclasses typing re inspect enum importlib.metadata numpy torch jax"
    script = f"""
        import sys
        before = set(sys.modules)
        import opwright.catalogue
        print(*[name for name in "{heavy}".split() if name in sys.modules and name not in before])
    """
    assert run(script) == []


@pytest.mark.parametrize("package", ["numpy", "torch", "jax"])
def test_recognising_a_class_imports_no_framework(package):
    pytest.importorskip(package)
    script = f"""
        import sys
        from opwright import catalogue
        class ndarray: pass
        class Tensor: pass
        ndarray.__module__, Tensor.__module__ = "numpy", "torch"
        for cls in (int, list, ndarray, Tensor, catalogue.Array):
            assert catalogue.framework_of_class(cls) is None
            catalogue.schema_type_of_class(cls)
        catalogue.framework_of_value(3)
        print("{package}" in sys.modules, "importlib.metadata" in sys.modules)
    """
    # Entry points were read for the lookalikes; the framework was not.
    assert run(script) == ["False", "True"]


def test_the_import_test_can_fail():
    assert run("import sys, numpy; print('numpy' in sys.modules)") == ["True"]


def test_entry_points_are_not_read_for_what_is_known():
    script = """
        import sys, numpy
        from opwright import catalogue
        assert catalogue.framework_of_class(numpy.ndarray).name == "numpy"
        assert catalogue.framework_of_class(int) is None
        assert catalogue.get("torch").package == "torch"
        assert catalogue.sharing("cpu") and catalogue.known()
        print("importlib.metadata" in sys.modules)
    """
    assert run(script) == ["False"]


# ------------------------------------------------------------------------------------------ classes


class Sub(np.ndarray):
    pass


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (np.ndarray, "numpy"),
        (Sub, "numpy"),
        (np.float32, "numpy"),
        (np.matrix, "numpy"),
        (int, None),
        (float, None),
        (list, None),
        (Array, None),
        (type("ndarray", (), {"__module__": "numpy"}), None),
    ],
)
def test_numpy_classes_are_recognised_and_lookalikes_are_not(cls, name):
    for _ in range(2):
        info = catalogue.framework_of_class(cls)
        assert (info and info.name) == name


def test_torch_classes_are_recognised():
    torch = pytest.importorskip("torch")
    sub = type("Sub", (torch.Tensor,), {})
    for cls in (torch.Tensor, torch.nn.Parameter, sub):
        assert catalogue.framework_of_class(cls).name == "torch"
    assert catalogue.framework_of_class(torch.dtype) is None


def test_jax_classes_and_tracers_are_recognised():
    jax = pytest.importorskip("jax")
    seen = [jax.Array, type(jax.numpy.ones(2)), type(jax.random.key(0))]

    def body(x):
        seen.append(type(x))
        return x

    jax.jit(body)(1.0)
    jax.vmap(body)(jax.numpy.ones(2))
    jax.grad(body)(1.0)
    assert len(seen) == 6
    assert {catalogue.framework_of_class(cls).name for cls in seen} == {"jax"}


def test_cupy_is_recognised_through_its_public_path(monkeypatch):
    package = ModuleType("cupy")
    # CuPy's class says that it lives in a private module.
    package.ndarray = type("ndarray", (), {"__module__": "cupy._core.core"})
    monkeypatch.setitem(sys.modules, "cupy", package)
    assert catalogue.framework_of_class(package.ndarray).name == "cupy"
    assert catalogue.schema_type_of_class(package.ndarray) == ("Tensor", "cupy")


@pytest.mark.parametrize(
    ("path", "meaning"),
    [
        ("numpy.ndarray", ("Tensor", "numpy")),
        ("numpy.generic", ("Tensor", "numpy")),
        ("numpy.dtype", ("ScalarType", None)),
        ("numpy.dtypes.Float32DType", ("ScalarType", None)),
        ("numpy.matrix", None),
        ("numpy.float32", None),
        ("torch.Tensor", ("Tensor", "torch")),
        ("torch.nn.Parameter", ("Tensor", "torch")),
        ("torch.dtype", ("ScalarType", None)),
        ("torch.device", ("Device", None)),
        ("torch.layout", ("Layout", None)),
        ("torch.memory_format", ("MemoryFormat", None)),
        ("torch.Generator", ("Generator", None)),
        ("torch.Stream", ("Stream", None)),
        ("torch.SymInt", ("SymInt", None)),
        ("torch.SymFloat", ("float", None)),
        ("torch.SymBool", ("bool", None)),
        ("torch.Size", None),
        ("jax.Array", ("Tensor", "jax")),
        ("builtins.int", None),
        ("opwright.catalogue.Array", ("Tensor", "array_api")),
    ],
)
def test_what_the_class_of_an_annotation_means(path, meaning):
    found = pytest.importorskip(path.partition(".")[0])
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    for _ in range(2):
        assert catalogue.schema_type_of_class(found) == meaning


def test_values_without_arrays_name_their_framework_too():
    assert catalogue.framework_of_value(np.ones(2)).name == "numpy"
    assert catalogue.framework_of_value(np.dtype("float32")).name == "numpy"
    assert catalogue.framework_of_value(np.float32).name == "numpy"
    assert catalogue.framework_of_value("cpu") is None
    assert catalogue.framework_of_value(3) is None


def test_torch_devices_and_dtypes_name_torch():
    torch = pytest.importorskip("torch")
    for value in (torch.device("cpu"), torch.float32, torch.strided, torch.ones(2)):
        assert catalogue.framework_of_value(value).name == "torch"


def test_jax_devices_name_jax_and_meet_numpy_arrays_as_constants():
    jax = pytest.importorskip("jax")
    for value in (jax.devices("cpu")[0], jax.numpy.float32, jax.numpy.bfloat16, jax.numpy.bool_):
        assert catalogue.framework_of_value(value).name == "jax"
    assert {info.name: info.constants for info in catalogue.known() if info.constants} == {"jax": ("numpy",)}


# --------------------------------------------------------------------------------------- frameworks


def test_the_four_frameworks_and_how_to_install_them():
    assert [(info.name, info.module, info.install) for info in catalogue.frameworks()] == [
        ("numpy", "opwright.frameworks.numpy", "pip install numpy"),
        ("torch", "opwright.frameworks.torch", "pip install 'opwright[torch]'"),
        ("cupy", "opwright.frameworks.cupy", "pip install 'opwright[cupy]'"),
        ("jax", "opwright.frameworks.jax", "pip install 'opwright[jax]'"),
    ]
    assert catalogue.flavours() == ("array_api", "dlpack", "numpy", "torch", "cupy", "jax")


def test_loaded_means_imported_by_anyone(toy):
    assert catalogue.loaded(catalogue.get("numpy"))
    assert catalogue.loaded(toy.info)
    del sys.modules["toyarrays"]
    assert not catalogue.loaded(toy.info)
    sys.modules["toyarrays"] = toy.package


@pytest.mark.parametrize(
    ("device", "flavours"),
    [
        ("cpu", ("numpy", "torch", "jax", "dlpack")),
        ("cuda", ("torch", "cupy", "jax", "dlpack")),
        ("mps", ()),
        ("meta", ()),
    ],
)
def test_flavours_that_share_a_device(device, flavours):
    assert catalogue.sharing(device) == flavours


@pytest.mark.parametrize(
    ("flavour", "device", "can"),
    [
        ("numpy", "cpu", True),
        ("numpy", "cuda", False),
        ("cupy", "cuda", True),
        ("cupy", "cpu", False),
        ("jax", "tpu", True),
        ("jax", "mps", False),
        ("torch", "anything", True),
        ("array_api", "anything", True),
        ("unknown", "cpu", False),
    ],
)
def test_devices_that_a_flavour_can_be_on(flavour, device, can):
    assert catalogue.lives_on(flavour, device) is can


def test_an_unknown_framework_lists_those_there_are():
    with pytest.raises(RegistrationValueError) as caught:
        catalogue.get("mxnet")
    assert str(caught.value) == (
        "'mxnet' is not a framework\n"
        "  expected: one of numpy, torch, cupy, jax\n"
        "  to fix: install the distribution that adds it through the entry point group 'opwright.frameworks'"
    )


def test_a_description_is_frozen():
    info = catalogue.get("numpy")
    with pytest.raises(AttributeError, match=r"^FrameworkInfo is frozen: 'name' cannot be set$"):
        info.name = "other"
    assert repr(info) == "<FrameworkInfo numpy>"


# ------------------------------------------------------------------------------------------ extending


def test_registering_by_hand(toy):
    assert catalogue.framework_of_class(toy.package.Grid) is None
    catalogue.register(toy.info)
    catalogue.register(toy.info)  # the same description again changes nothing
    assert catalogue.frameworks()[-1] is toy.info
    assert len(catalogue.known()) == 5
    assert catalogue.framework_of_class(toy.package.Grid) is toy.info
    assert catalogue.framework_of_class(type("Sub", (toy.package.Grid,), {})) is toy.info
    assert catalogue.schema_type_of_class(toy.package.Grid) == ("Tensor", "toy")
    assert catalogue.schema_type_of_class(toy.package.Kind) == ("ScalarType", None)
    assert catalogue.framework_of_value(toy.package.Kind()) is toy.info
    assert catalogue.sharing("cpu") == ("numpy", "torch", "jax", "toy", "dlpack")
    assert catalogue.lives_on("toy", "toydevice")
    assert toy.info.install == "pip install toyarrays"


def test_a_name_is_registered_once(toy):
    other = FrameworkInfo("fake", package="f", module="fake.module", array_classes=(), flavours=("torch",))
    with pytest.raises(DuplicateError) as caught:
        catalogue.register(other)
    assert str(caught.value) == (
        "a framework named 'torch' is already registered\n"
        "  got: opwright.frameworks.torch and fake.module\n"
        "  to fix: give the new one a name and flavours of its own"
    )
    assert len(catalogue.known()) == 4


def test_only_descriptions_are_registered():
    with pytest.raises(RegistrationTypeError) as caught:
        catalogue.register("torch")
    assert str(caught.value) == "a framework is described by a FrameworkInfo\n  got: 'torch' of type str"


def test_entry_points_are_read_once_at_the_first_unknown_class(monkeypatch, toy):
    calls = offer(monkeypatch, ("toy", toy.info))
    assert catalogue.framework_of_class(int) is None
    assert catalogue.framework_of_class(np.ndarray).name == "numpy"
    assert calls == []
    assert catalogue.framework_of_class(toy.package.Grid) is toy.info
    assert catalogue.framework_of_class(Array) is None
    assert catalogue.get("toy") is toy.info
    assert calls == ["toy"]


def test_entry_points_are_read_at_the_first_unknown_annotation(monkeypatch, toy):
    calls = offer(monkeypatch, ("toy", toy.info))
    assert catalogue.schema_type_of_class(toy.package.Grid) == ("Tensor", "toy")
    assert calls == ["toy"]


def test_a_distribution_may_ask_for_classes_while_it_loads(monkeypatch, toy):
    offer(monkeypatch, ("toy", toy.info))
    inside = []

    def asking(info):
        inside.append(catalogue.framework_of_class(toy.package.Grid))
        plain(info)

    plain = catalogue.register
    monkeypatch.setattr(catalogue, "register", asking)
    assert catalogue.framework_of_class(toy.package.Grid) is toy.info
    assert inside == [None]


@pytest.mark.parametrize(
    ("loads", "got"),
    [
        (ImportError("no module toyarrays"), "ImportError: no module toyarrays"),
        (
            "it",
            "RegistrationTypeError: a framework is described by a FrameworkInfo\n  got: 'it' of type str",
        ),
    ],
)
def test_a_broken_entry_point_names_its_distribution_every_time(monkeypatch, loads, got):
    offer(monkeypatch, ("toy", loads))
    for _ in range(2):
        with pytest.raises(RegistrationError) as caught:
            catalogue.frameworks()
        assert str(caught.value) == (
            "the framework 'toy' of distribution 'toy-dist' cannot be added\n"
            "  expected: entry point 'toy_for_opwright:INFO' of group 'opwright.frameworks' leads to a "
            "FrameworkInfo\n"
            f"  got: {got}\n"
            "  to fix: update or uninstall 'toy-dist'"
        )
    assert len(catalogue.known()) == 4


# ---------------------------------------------------------------------------------------------- Array


def test_array_has_no_instances():
    with pytest.raises(TypeError) as caught:
        Array()
    assert str(caught.value) == (
        "opwright.Array stands for any framework's array in an annotation and has no instances; make "
        "an array with the framework itself"
    )


def test_array_is_final():
    with pytest.raises(TypeError) as caught:
        type("Mine", (Array,), {})
    assert str(caught.value) == "opwright.Array is final; annotate with it instead of making Mine"
