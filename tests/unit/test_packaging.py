from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import zipfile
from itertools import product
from pathlib import Path

import pytest
from conftest import RunPython

from copyspec_edge.llama.presets import Preset, load_presets, rebuild_command

ROOT = Path(__file__).parents[2]
BUILDING = (ROOT / "docs" / "building.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, run_python: RunPython) -> Path:
    """The wheel built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    done = run_python(
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-cache-dir",
        *isolation,
        "--wheel-dir",
        str(folder),
        str(ROOT),
    )
    assert done.returncode == 0, done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_every_module_and_data_file(wheel: Path) -> None:
    package = ROOT / "copyspec_edge"
    modules = {
        path.relative_to(ROOT).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    data = {"copyspec_edge/models.toml", "copyspec_edge/presets.toml", "copyspec_edge/py.typed"}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        assert archive.read("copyspec_edge/models.toml") == (ROOT / "models.toml").read_bytes()
        presets = (ROOT / "native" / "presets.toml").read_bytes()
        assert archive.read("copyspec_edge/presets.toml") == presets
    assert modules | data <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert {name.split("/")[0] for name in held} == {
        "copyspec_edge",
        f"copyspec_edge-{wheel.name.split('-')[1]}.dist-info",
    }


def test_the_installed_wheel_runs_away_from_the_checkout(
    wheel: Path, tmp_path: Path, run_python: RunPython
) -> None:
    target = tmp_path / "site"
    pip = ("-m", "pip", "install", "--no-deps", "--quiet", "--target", str(target), str(wheel))
    assert run_python(*pip).returncode == 0
    code = (
        "import copyspec_edge.cli as cli; print(cli.__file__); "
        "from copyspec_edge.llama.presets import rebuild_command; print(rebuild_command()); "
        "raise SystemExit(cli.main(['models']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
    )
    assert done.returncode == 0, done.stderr
    where, command, *listing = done.stdout.splitlines()
    assert Path(where).is_relative_to(target)
    assert command == rebuild_command()
    assert any(line.startswith("smollm2-135m\t") for line in listing)


def documented_build_commands() -> list[str]:
    """The lines of docs/building.md's code blocks that set CMAKE_ARGS, continued lines joined."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", BUILDING, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", "").splitlines()
    return [line.strip() for line in lines if "CMAKE_ARGS" in line]


def commands_of(preset: Preset) -> set[str]:
    return {
        preset.command(windows=windows, x86_64=x86_64)
        for windows, x86_64 in product((True, False), repeat=2)
    }


def test_every_documented_build_command_is_a_presets() -> None:
    known = set().union(*map(commands_of, load_presets().values()))
    commands = documented_build_commands()
    assert commands
    for command in commands:
        assert command in known


@pytest.mark.parametrize("name", ["cpu", "cuda", "metal", "vulkan"])
def test_the_documentation_says_how_to_build_for(name: str) -> None:
    assert commands_of(load_presets()[name]) & set(documented_build_commands())


def test_the_cpu_preset_turns_amx_off_where_gcc_builds_for_x86_64_only() -> None:
    cpu = load_presets()["cpu"]
    assert "-mno-amx-tile" in cpu.command(windows=False, x86_64=True)
    assert "-mno-amx" not in cpu.command(windows=False, x86_64=False)
    assert "-mno-amx" not in cpu.command(windows=True, x86_64=True)


def test_a_build_command_survives_the_shell() -> None:
    words = shlex.split(load_presets()["cpu"].command(windows=False, x86_64=True))
    assert words[0].startswith("CMAKE_ARGS=-DGGML_NATIVE=ON ")
    flags = shlex.split(words[0].removeprefix("CMAKE_ARGS="))
    assert "-DCMAKE_C_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" in flags
    assert words[1:3] == ["pip", "install"]


DECODE = """
from copyspec_edge.drafting.warming import warm_up
warm_up()
print('compiled')
"""


@pytest.mark.parametrize("locators", ["[]", "[caching.UserWideCacheLocator]"])
def test_kernels_work_wherever_machine_code_can_or_cannot_be_cached(
    run_python: RunPython, tmp_path: Path, locators: str
) -> None:
    """A package in a read-only place, without and with a user's cache folder."""
    restrict = (
        "import os; os.environ.pop('NUMBA_CACHE_DIR', None)\n"
        "from numba.core import caching\n"
        "assert caching.CacheImpl._locator_classes\n"
        f"caching.CacheImpl._locator_classes = {locators}\n"
    )
    env = {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = run_python("-c", restrict + DECODE, env=env)
    assert (done.returncode, done.stdout) == (0, "compiled\n"), done.stderr
    assert done.stderr == ""


def test_importing_the_package_is_silent_and_loads_no_command_line(run_python: RunPython) -> None:
    code = "import copyspec_edge, sys; assert 'copyspec_edge.cli' not in sys.modules"
    done = run_python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
