"""The command line as a whole: what bad input gets, exit codes, help."""

import errno
import gzip
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from proxyfl.cli import main as module
from proxyfl.cli.main import COMMANDS, main
from proxyfl.errors import PeerTimeout
from proxyfl.records import folder
from proxyfl.simulation import run as runner
from tests.waiting import PATIENCE

TINY = [
    "rounds=1",
    "partition.clients=2",
    "partition.examples=30",
    "learning.batch_size=15",
    "methods=proxyfl",
]
NAMES = list(COMMANDS)


def refused(
    capsys: pytest.CaptureFixture[str], here: Path, *sets: str, more: tuple[str, ...] = ()
) -> str:
    """What a run with these settings says; it must end with exit code 2, print nothing and leave no
    folder."""
    before = sorted(here.iterdir())
    own = {one.partition("=")[0]: one for one in (*TINY, *sets)}
    arguments = [part for one in own.values() for part in ("--set", one)]
    assert main(["run", *arguments, "--out", str(here / "out"), "--workers", "1", *more]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sorted(here.iterdir()) == before, "something was left behind"
    *patience, said = printed.err.splitlines(keepends=True)
    assert patience in ([], ["Loading the data and building the models ...\n"])
    assert said.startswith("proxyfl: ")
    assert "Traceback" not in printed.err
    return printed.err


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "learning.bta=0",
            r"Unknown key 'bta' in \[learning\]. Did you mean 'beta'\? "
            r"Known: prevalence, proxy_balance, alpha",
        ),
        (
            "learing.beta=0",
            r"Unknown key 'learing'. Did you mean 'learning'\? Known: seed, methods",
        ),
        ("learning.beta=1.5", "Expected 0 <= learning.beta <= 1, got learning.beta=1.5"),
        ("learning.beta=-1", "Expected 0 <= learning.beta <= 1, got learning.beta=-1"),
        ("learning.alpha=2", "Expected 0 <= learning.alpha <= 1, got learning.alpha=2"),
        ("privacy.delta=1", "Expected 0 < privacy.delta < 1, got privacy.delta=1"),
        ("privacy.delta=3", "Expected 0 < privacy.delta < 1, got privacy.delta=3"),
        (
            "learning.batch_size=31",
            "batch_size=31 is larger than the 30 examples of client-0. Set it to 30 or less",
        ),
        (
            "partition.examples=300",
            r"asks for 180 examples of a majority class.*Lower examples=300, p_major or clients",
        ),
        (
            "partition.examples=3000",
            "2 clients with 3000 examples each need 6000, there are 1438. Lower examples to 719",
        ),
        ("methods=fedprox", "Unknown method 'fedprox'. Known: alone, regular"),
        ("data.source=nowhere", "Unknown source 'nowhere'.*digits, mnist"),
        ("data.source=nowhere.csv", "nowhere.csv: no such file"),
        (
            "models.private=no.such:model",
            "'no.such:model': no module 'no'. Expected package.module:factory",
        ),
        (
            "models.proxy=resnet99",
            "Unknown model 'resnet99'. Did you mean 'resnet18'[?] Known: linear, hazards, mlp",
        ),
        (
            "models.private=mlp,mlp,mlp",
            "one value or 2 values .one per client. for models.private, got 3",
        ),
        ("device=abacus", "Cannot use device='abacus'.*Set device=\"cpu\""),
        ("exchange.topology=star", "Unknown topology 'star'. Known: exponential"),
    ],
)
def test_settings(
    setting: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each setting that cannot be: its value, what was expected, what to do."""
    assert re.search(message, refused(capsys, tmp_path, setting))


def test_unknown_key_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a config file as on the command line: the key, its likely meaning and the known ones."""
    (tmp_path / "c.toml").write_text("[privacy]\nnoise_multiplyer = 2\n")
    err = refused(capsys, tmp_path, more=(str(tmp_path / "c.toml"),))
    assert "Unknown key 'noise_multiplyer' in [privacy]. Did you mean 'noise_multiplier'?" in err


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        (
            "bn",
            "return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, "
            "classes))",
            r"BatchNorm1d.*GroupNorm",
        ),
        ("mixing", "return Mixing(classes)", "mixes the examples of a batch"),
        (
            "nothing",
            "return 'a model'",
            "Expected a torch.nn.Module from 'own_nothing:net', got str",
        ),
        ("raises", "raise RuntimeError('no luck')", "raised RuntimeError: no luck"),
        (
            "shape",
            "return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))",
            r"expected logits of shape \(2, 10\)",
        ),
        (
            "frozen",
            "return nn.Sequential(nn.Flatten(), nn.Linear(64, classes)).requires_grad_(False)",
            "no trainable parameters",
        ),
    ],
)
def test_own_proxies(
    name: str, body: str, message: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    """A proxy with BatchNorm or otherwise mixing examples, a factory that returns no module, or
    raises, is refused."""
    (tmp_path / f"own_{name}.py").write_text(
        "from torch import nn\n"
        "class Mixing(nn.Module):\n"
        "    def __init__(self, classes):\n"
        "        super().__init__()\n"
        "        self.fc = nn.Linear(64, classes)\n"
        "    def forward(self, x):\n"
        "        return self.fc(x.flatten(1) - x.flatten(1).mean(0))\n"
        f"def net(shape, classes):\n    {body}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert re.search(message, refused(capsys, tmp_path, f"models.proxy=own_{name}:net"))
    assert "no 'nett'" in refused(capsys, tmp_path, f"models.proxy=own_{name}:nett")


def npz(path: Path, **changes: np.ndarray) -> Path:
    generator = np.random.default_rng(0)
    arrays = {"x": generator.normal(size=(100, 6)).astype(np.float32), "y": np.arange(100) % 2}
    np.savez(path, **(arrays | changes))
    return path


def test_labels_outside_the_classes(tmp_path: Path, capsys, monkeypatch) -> None:
    """A negative label in a file, or one beyond the classes that a factory states, is shown with
    its place."""
    y = np.arange(100) % 2
    y[17] = -3
    err = refused(capsys, tmp_path, f"data.source={npz(tmp_path / 'd.npz', y=y)}")
    assert "expected numbers from 0, got -3 at index 17" in err
    (tmp_path / "own_labels.py").write_text(
        "import torch\n"
        "from proxyfl.data import Dataset\n"
        "def make():\n"
        "    x, y = torch.zeros(40, 6), torch.arange(40) % 3\n"
        "    return Dataset('mine', x, y, x, y % 2, 2, ('a', 'b'))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert "expected every label within 0..1, got 2 at index 2" in refused(
        capsys, tmp_path, "data.source=own_labels:make"
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_no_numbers(
    value: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NaN and infinity in an array, and an empty cell in a table, are shown with their place and
    what to do."""
    x = np.arange(600, dtype=np.float32).reshape(100, 6)
    x[:, 2] = value
    err = refused(capsys, tmp_path, f"data.source={npz(tmp_path / 'd.npz', x=x)}")
    assert re.search(
        rf"expected finite values, got {value} in example 0 at \(2,\). Remove such", err
    )
    (tmp_path / "t.csv").write_text("a,b,label\n1,2,x\n1,,y\n")
    assert "column 'b' is empty or NaN in row 3." in refused(
        capsys, tmp_path, f"data.source={tmp_path / 't.csv'}"
    )


def test_an_image_of_the_wrong_shape(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One image of another size in a folder is named, with both sizes."""
    for label in ("a", "b"):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(3):
            size = (9, 8) if (label, i) == ("b", 1) else (8, 8)
            Image.new("L", size).save(tmp_path / "images" / label / f"{i}.png")
    err = refused(capsys, tmp_path, f"data.source={tmp_path / 'images'}")
    assert re.search(r"b/1.png: expected 8x8 pixels of 1 channel like .*a/0.png, got 9x8", err)


@pytest.mark.parametrize("kind", ["npz", "csv", "png", "idx"])
def test_damaged_files(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A truncated or corrupt file of any format is named as such."""
    more: tuple[str, ...] = ()
    if kind == "npz":
        path = npz(tmp_path / "d.npz")
        path.write_bytes(path.read_bytes()[:500])
        source = str(path)
    elif kind == "csv":
        path = tmp_path / "d.csv"
        path.write_bytes(b'a,label\n"1,x\n2\n\xff\xfe')
        source = str(path)
    elif kind == "png":
        path = tmp_path / "images" / "a" / "0.png"
        path.parent.mkdir(parents=True)
        Image.new("L", (8, 8)).save(path)
        path.write_bytes(path.read_bytes()[:40])
        source = str(tmp_path / "images")
    else:
        for part, header in (
            ("train-images-idx3", b"\0\0\x08\x03"),
            ("train-labels-idx1", b"\0\0\x08\x01"),
            ("t10k-images-idx3", b"\0\0\x08\x03"),
            ("t10k-labels-idx1", b"\0\0\x08\x01"),
        ):
            (tmp_path / f"{part}-ubyte.gz").write_bytes(gzip.compress(header + b"\0\0\0\x05")[:-4])
        path, source, more = (
            tmp_path / "train-images-idx3-ubyte.gz",
            "mnist",
            ("--data-dir", str(tmp_path)),
        )
    err = refused(capsys, tmp_path, f"data.source={source}", "data.download=false", more=more)
    assert path.name in err


def test_an_existing_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that holds something is left alone."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.toml").write_text("mine")
    assert "out exists already. Give another folder with --out" in refused(capsys, tmp_path)
    assert (tmp_path / "out" / "config.toml").read_text() == "mine"


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the way of the folder's parent is an error that names both."""
    (tmp_path / "file").write_text("mine")
    err = refused(capsys, tmp_path, more=("--out", str(tmp_path / "file" / "run")))
    assert re.search(
        r"Cannot write the run's folder .*file/run: (File exists|Not a directory).*--out", err
    )


def test_a_disk_that_is_full_from_the_start(
    tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When not even the config can be written there is no folder."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device. Nothing was run" in refused(capsys, tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_disk_that_becomes_full(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """When records can no longer be written the run stops with the file's name: exit code 2, no
    traceback."""
    create = folder.create

    def then_full(path: Path, config: str, **others: object) -> Path:
        made = create(path, config, **others)
        (made / "metrics.jsonl").unlink()
        (made / "metrics.jsonl").symlink_to("/dev/full")
        return made

    monkeypatch.setattr(folder, "create", then_full)
    arguments = [part for one in TINY for part in ("--set", one)]
    assert main(["run", *arguments, "--out", str(tmp_path / "out"), "--workers", "1"]) == 2
    err = capsys.readouterr().err
    assert re.search(
        r"Cannot write .*metrics.jsonl: No space left on device.*intact. Make room", err
    )


def test_other_failures(tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails while running, through no fault of the input, is exit code 1 and a message; Ctrl-C
    is 130."""
    arguments = [
        "run",
        *(part for one in TINY for part in ("--set", one)),
        "--out",
        str(tmp_path / "out"),
    ]
    for problem, code, said in (
        (PeerTimeout("client 3 is silent"), 1, "proxyfl: client 3 is silent\n"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ):

        def fail(*_: object, problem: BaseException = problem, **__: object) -> None:
            raise problem

        monkeypatch.setattr(runner, "prepare", fail)
        assert main(arguments) == code
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_help_teaches(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command's help says what it does and has two or more example lines that parse."""
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    text = re.sub(r"\\\n\s+", "", capsys.readouterr().out)
    assert "examples:" in text
    examples = [
        line.strip()
        for line in text.split("examples:")[1].splitlines()
        if line.startswith("  proxyfl ")
    ]
    assert len(examples) >= 2
    for example in examples:
        command = re.split(r"  +| > ", example)[0].split()[1:]
        module.parser().parse_args(command)


def test_no_arguments_show_first_steps(capsys: pytest.CaptureFixture[str]) -> None:
    """`proxyfl` alone names a command for each kind of beginner, and where all commands are."""
    assert main([]) == 0
    printed = capsys.readouterr().out
    for line in ("proxyfl run", "proxyfl new", "proxyfl federation try", "proxyfl --help"):
        assert f"  {line}" in printed


def test_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    """`proxyfl --help` lists every command; --version prints one; an unknown one is exit code 2."""
    for arguments, code, said in (
        (["--help"], 0, "first steps:"),
        (["--version"], 0, "proxyfl 0."),
        (["fly"], 2, "Unknown command 'fly'"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code
        printed = capsys.readouterr()
        assert said in printed.out + printed.err
        if arguments == ["--help"]:
            assert all(re.search(rf"^    {name}( |$)", printed.out, re.MULTILINE) for name in NAMES)


@pytest.mark.parametrize(
    ("target", "said"), [("/dev/full", "No space left on device"), ("closed", "")]
)
def test_output_that_cannot_be_written(target: str, said: str) -> None:
    """A full disk or a reader that went away behind standard output: exit code 1 and no
    traceback."""
    command = [sys.executable, "-m", "proxyfl.cli.main", "methods", "--json"]
    if target == "closed":
        read, write = os.pipe()
        os.close(read)
    elif Path(target).exists():
        write = os.open(target, os.O_WRONLY)
    else:
        pytest.skip("no /dev/full on this system")
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=PATIENCE
    )
    os.close(write)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_modules_load(number: signal.Signals) -> None:
    """Ctrl-C in the seconds before a command begins ends in one line: 130 and no traceback."""
    command = [sys.executable, "-X", "importtime", "-m", "proxyfl", "models"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said = ""
    # NumPy is imported by the command's module, long before the last of torch.
    while "numpy.version" not in said:
        said += process.stderr.readline() or pytest.fail(f"ended too soon: {said[-500:]}")
    process.send_signal(number)
    said += process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 130
    assert "proxyfl: interrupted; nothing was begun." in said
    assert "Traceback" not in said


def test_a_background_job_ignores_ctrl_c() -> None:
    """A process that was started with SIGINT ignored, as by nohup, keeps ignoring it."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "from proxyfl.cli.main import main; main(['methods', '--json']); "
        "assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE
    )


def test_python_m(tmp_path: Path) -> None:
    """`python -m proxyfl` is the command."""
    done = subprocess.run(
        [sys.executable, "-m", "proxyfl", "methods", "--json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE,
    )
    assert done.returncode == 0
    assert '"proxyfl"' in done.stdout


def test_a_short_parser_says_the_same() -> None:
    """The top's help is the same whether the commands were imported for it or not."""
    assert module.parser(only="").format_help() == module.parser().format_help()


def test_a_polite_kill_is_like_ctrl_c() -> None:
    """SIGTERM raises KeyboardInterrupt, so a run that is killed politely leaves its records as
    Ctrl-C does."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        main(["methods", "--json"])
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_from_another_thread(capsys: pytest.CaptureFixture[str]) -> None:
    """The command line can be called from a thread, where no signal handler can be set."""
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(main(["methods", "--json"])))
    thread.start()
    thread.join()
    assert codes == [0]
