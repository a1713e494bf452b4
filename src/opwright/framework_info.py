"""What is known of a framework without importing it, and the frameworks that come with Opwright.

Built on the bare language, as the catalogue is: it is loaded with the engine.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


class FrameworkInfo:
    """What is known of a framework without importing it. Frozen.

    Parameters
    ----------
    name, package
        Its name, such as ``"torch"``, and the package that is in ``sys.modules`` once it is loaded.
    module
        The module that lowers overloads into it.
    namespace
        The module with the array API's functions; by default array_api_compat's for its arrays.
    promotion
        The module whose ``result_type`` gives the dtype of arithmetic on its arrays from metadata; by
        default NumPy's rules.
    array_classes
        Public paths ``(module, qualname)`` of its array classes; subclasses count.
    annotations
        Public paths and flavours ``(module, qualname, flavour)`` of annotations that mean ``Tensor``.
    protocol
        The method by which what is none of its arrays takes over calls of its functions; empty for none.
    types
        Public paths and schema types ``(module, qualname, type)`` of its other annotations.
    constants
        Names of the frameworks whose arrays it takes beside its own, as constants.
    opaque
        Private path of its table of opaque classes: from the class to an object whose ``class_name`` is
        the schema type, and whose ``opaque_typ`` is ``"value"`` or ``"constant"`` for constants.
    device_types
        The device types that its arrays live on, in torch's words; ``None`` for any.
    shares
        The device types whose memory it takes from another framework without a copy.
    flavours
        The flavours that it brings; by default one of its name.
    tracer
        Attributes by which functions tell its tracer to take another one, to call one while it traces, to
        stop at one, and why; empty where it has no tracer that reads Python code.
    transforms
        Its own transforms by the names that ours have: ``("vjp", "jax.vjp")``.
    distribution, install
        What is installed to have it, and the line that does so.
    """

    __slots__ = (
        "annotations", "array_classes", "constants", "device_types", "distribution", "flavours", "install",
        "load_namespace", "load_promotion", "module", "name", "namespace", "opaque", "package", "promotion",
        "protocol", "shares", "tracer", "transforms", "types",
    )  # fmt: skip
    name: str
    package: str
    module: str
    namespace: str
    promotion: str
    array_classes: tuple[tuple[str, str], ...]
    annotations: tuple[tuple[str, str, str], ...]
    protocol: str
    types: tuple[tuple[str, str, str], ...]
    constants: tuple[str, ...]
    opaque: tuple[str, str]
    device_types: tuple[str, ...] | None
    shares: tuple[str, ...]
    flavours: tuple[str, ...]
    tracer: tuple[str, ...]
    transforms: tuple[tuple[str, str], ...]
    distribution: str
    install: str
    load_namespace: Callable[[], ModuleType] | None
    load_promotion: Callable[[], ModuleType] | None

    def __init__(
        self,
        name: str,
        *,
        package: str,
        module: str,
        namespace: str = "",
        promotion: str = "",
        array_classes: tuple[tuple[str, str], ...],
        annotations: tuple[tuple[str, str, str], ...] = (),
        protocol: str = "",
        types: tuple[tuple[str, str, str], ...] = (),
        constants: tuple[str, ...] = (),
        opaque: tuple[str, str] = ("", ""),
        device_types: tuple[str, ...] | None = None,
        shares: tuple[str, ...] = (),
        flavours: tuple[str, ...] | None = None,
        tracer: tuple[str, ...] = (),
        transforms: tuple[tuple[str, str], ...] = (),
        distribution: str | None = None,
        install: str | None = None,
    ) -> None:
        values = {
            "name": name,
            "package": package,
            "module": module,
            "namespace": namespace,
            "promotion": promotion,
            "load_namespace": _loader(namespace),
            "load_promotion": _loader(promotion),
            "array_classes": tuple(array_classes),
            "annotations": tuple(annotations),
            "protocol": protocol,
            "types": tuple(types),
            "constants": tuple(constants),
            "opaque": tuple(opaque),
            "device_types": None if device_types is None else tuple(device_types),
            "shares": tuple(shares),
            "flavours": (name,) if flavours is None else tuple(flavours),
            "tracer": tuple(tracer),
            "transforms": tuple(transforms),
            "distribution": distribution or package,
            "install": install or f"pip install {distribution or package}",
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError(f"FrameworkInfo is frozen: {field!r} cannot be set")

    def __repr__(self) -> str:
        return f"<FrameworkInfo {self.name}>"


def _loader(path: str) -> Callable[[], ModuleType] | None:
    """Return what imports a module with a statement, which a tracer of Python code runs as any other.

    ``importlib.import_module`` is closed to torch's.
    """
    if not all(part.isidentifier() for part in path.split(".")):
        return None
    scope: dict[str, Callable[[], ModuleType]] = {}
    exec(f"def load():\n    import {path} as module\n    return module\n", scope)
    return scope["load"]


# The order is that of preference where several flavours share a device's memory.
BUILT_IN = (
    FrameworkInfo(
        "numpy",
        package="numpy",
        module="opwright.frameworks.numpy",
        array_classes=(("numpy", "ndarray"), ("numpy", "generic")),
        annotations=(("numpy", "ndarray", "numpy"), ("numpy", "generic", "numpy")),
        types=(("numpy", "dtype", "ScalarType"),),
        device_types=("cpu",),
        shares=("cpu",),
    ),
    FrameworkInfo(
        "torch",
        package="torch",
        module="opwright.frameworks.torch",
        namespace="opwright.frameworks.torch.namespace",
        promotion="opwright.frameworks.torch.promotion",
        array_classes=(("torch", "Tensor"),),
        annotations=(("torch", "Tensor", "torch"), ("torch.nn", "Parameter", "torch")),
        protocol="__torch_function__",
        types=(
            ("torch", "dtype", "ScalarType"),
            ("torch", "device", "Device"),
            ("torch", "layout", "Layout"),
            ("torch", "memory_format", "MemoryFormat"),
            ("torch", "Generator", "Generator"),
            ("torch", "Stream", "Stream"),
            ("torch", "SymInt", "SymInt"),
            ("torch", "SymFloat", "float"),
            ("torch", "SymBool", "bool"),
        ),
        opaque=("torch._library.opaque_object", "_OPAQUE_TYPES"),
        device_types=None,
        shares=("cpu", "cuda"),
        tracer=(
            "_torchdynamo_inline",
            "_dynamo_marked_constant",
            "_torchdynamo_disable",
            "_torchdynamo_disable_msg",
        ),
        transforms=(("vjp", "torch.func.vjp"), ("jvp", "torch.func.jvp"), ("vmap", "torch.vmap")),
        install="pip install 'opwright[torch]'",
    ),
    FrameworkInfo(
        "cupy",
        package="cupy",
        module="opwright.frameworks.cupy",
        array_classes=(("cupy", "ndarray"),),
        annotations=(("cupy", "ndarray", "cupy"),),
        device_types=("cuda",),
        shares=("cuda",),
        distribution="cupy-cuda12x",
        install="pip install 'opwright[cupy]'",
    ),
    FrameworkInfo(
        "jax",
        package="jax",
        module="opwright.frameworks.jax",
        namespace="jax.numpy",  # what JAX makes of a NumPy array while it traces is another's by its bases
        promotion="opwright.frameworks.jax.promotion",
        array_classes=(
            ("jax", "Array"),
            ("jax.core", "Tracer"),
            ("jax.ref", "Ref"),
            ("jax._src.literals", "TypedNdArray"),  # what jax.lax.stop_gradient makes of a NumPy array
        ),
        annotations=(("jax", "Array", "jax"),),
        types=(
            ("jax", "Device", "Device"),
            ("jax._src.numpy.scalar_types", "_ScalarMeta", "ScalarType"),  # the class of jax.numpy.float32
        ),
        constants=("numpy",),
        device_types=("cpu", "cuda", "tpu"),
        shares=("cpu", "cuda"),
        transforms=(("vjp", "jax.vjp"), ("jvp", "jax.jvp"), ("vmap", "jax.vmap")),
        install="pip install 'opwright[jax]'",
    ),
)
