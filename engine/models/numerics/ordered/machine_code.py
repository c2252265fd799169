"""Modules in LLVM's language, compiled for this processor into functions that Python calls.

The calls leave Python's lock open. Nothing is written to disk.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from string import Template
from typing import Any

import llvmlite.binding as llvm

Code = Mapping[str, Callable[..., None]]
"""Functions of machine code by name."""


def compiled(source: str, types: Mapping[str, Any], *, inline: bool = False) -> Code | None:
    """The functions of a module, by their types for ctypes; None on a processor without fused vector multiply-adds.

    `inline` asks for the passes that a module with small functions gains from; they take as long again.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if llvm.get_default_triple().startswith("x86_64") and not (features.get("fma") and features.get("avx2")):
        return None
    return compiled_for(source, types, llvm.get_host_cpu_name(), features.flatten(), inline=inline)


def compiled_for(source: str, types: Mapping[str, Any], processor: str, features: str, *, inline: bool = False) -> Code:
    """The same for a processor as LLVM names it."""
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=processor, features=features, opt=3)
    module = llvm.parse_assembly(source)
    module.verify()
    if inline:
        passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
        passes.getModulePassManager().run(module, passes)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    functions = {name: kind(engine.get_function_address(name)) for name, kind in types.items()}
    for function in functions.values():
        # its memory is the engine's
        function.engine = engine
    return functions


def template(name: str) -> Template:
    """A piece of code beside this module, with places to fill in."""
    return Template((files("engine.models.numerics") / "code" / f"{name}.ll").read_text(encoding="utf-8"))


def spread(name: str, scalar: str, kind: str) -> list[str]:
    """Code that puts a number into each of sixteen lanes."""
    return [
        f"%{name}i = insertelement <16 x {kind}> poison, {kind} %{scalar}, i64 0",
        f"%{name} = shufflevector <16 x {kind}> %{name}i, <16 x {kind}> poison, <16 x i32> zeroinitializer",
    ]


def first_lanes(name: str, left: str) -> list[str]:
    """Code of a mask of the first `left` of sixteen lanes."""
    lanes = ", ".join(f"i64 {lane}" for lane in range(16))
    return [*spread(f"{name}v", left, "i64"), f"%{name} = icmp sgt <16 x i64> %{name}v, <{lanes}>"]


def fma(name: str, left: str, right: str, before: str) -> str:
    """Code of a fused multiply-add of sixteen lanes: left * right + before, rounded once."""
    operands = ", ".join(f"<16 x float> {item}" for item in (left, right, before))
    return f"%{name} = call <16 x float> @llvm.fma.v16f32({operands})"


def lines(code: Iterable[str]) -> str:
    """Instructions, indented."""
    return "\n".join(f"  {line}" for line in code)
