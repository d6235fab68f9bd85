"""The package `policy-zoo`: the library `zoo`, its bundled configs and the command `zoo`."""

import runpy
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
NATIVE = runpy.run_path(str(HERE / 'zoo' / 'backend' / 'native' / 'build.py'))  # importing zoo would need torch
VERSION = runpy.run_path(str(HERE / 'zoo' / 'core' / '__init__.py'))['VERSION']
# Minimum versions ("floors"): the fast tests pass with them on Python 3.10, see benchmarks/results/versions.md, .ci/versions.
CORE = [
    'torch>=2.10',  # networks; older versions have a known vulnerability in loading weights
    'numpy>=1.26',  # arrays of the environments, seed streams
    'gymnasium>=1.1',  # environments; vector environments declare their autoreset mode (not in 1.0)
    'easydict>=1.10',  # attribute access to the resolved config; LGPL-3.0
    'tensorboardX>=2.6.1',  # TensorBoard event files without TensorFlow; 2.6 needs protobuf 3, which warns
    'crc32c>=2.3',  # tensorboardX writes lines three times as fast with it; LGPL-2.1
    'pydantic>=2.7',  # typed, ranged sections of the config; 2.6 cannot read back the spaces of Dict in Dict
    'rich>=13.0',  # the progress line on the console
    'pyyaml>=6.0',  # config files and command-line values
    'cloudpickle>=2.0',  # sends classes and functions of a user's script to runners; gymnasium needs it too
    'jinja2>=3.1',  # the page of zoo report, with HTML escaped; torch needs it too
    'markupsafe>=2.1',  # marks text that already is HTML; jinja2 needs it
    'argcomplete>=3.1',  # completion of the command in bash, zsh and fish
]
ENVPOOL = 'envpool>=1.2; python_version >= "3.11" and platform_system == "Linux"'
EXTRAS = {
    'box2d': ['gymnasium[box2d]>=1.1'],  # LunarLander, BipedalWalker
    'mujoco': ['gymnasium[mujoco]>=1.1', 'mujoco>=3.1.3'],  # HalfCheetah, Hopper, Walker2d, Ant
    'atari': ['ale-py>=0.12'],  # Atari games, ROMs included; GPL-2, so only on request
    'minatar': ['minatar>=1.0.15'],  # the five MinAtar games; GPL-3, so only on request
    'envpool': [ENVPOOL],  # Atari, MuJoCo, Box2D, MiniGrid, ... as one C++ batch; Apache-2.0
    'procgen': [ENVPOOL, 'PyQt5-Qt5>=5.15'],  # Procgen in envpool draws with Qt's Core and Gui libraries; LGPL-3
    'agents': [
        'pettingzoo>=1.25',  # envs of several agents; its registry of names needs 1.27
        'mpe2>=1.0',  # simple_spread and simple_tag, which have left PettingZoo
        'open_spiel>=1.6; python_version >= "3.11"',  # board and card games, and exact exploitability
        'pygame-ce>=2.5',  # PettingZoo's classic games import it
    ],
    'wandb': ['wandb>=0.19'],  # the sink wandb: Weights & Biases
    'mlflow': [
        'mlflow-skinny>=3.0',  # the sink mlflow: MLflow without its server and pages
        'sqlalchemy>=2.0',  # MLflow's local database, which mlflow-skinny leaves out
        'alembic>=1.13',  # makes the tables of that database
    ],
    'ray': ['ray>=2.60'],  # runners on many machines; older ones have token authentication off
    'sweep': ['optuna>=4.0'],  # zoo sweep: samplers, pruning, a journal that several machines share
    'plot': ['matplotlib>=3.8'],  # zoo plot, zoo report and the curve of a result
    'video': ['imageio-ffmpeg>=0.5', 'pygame-ce>=2.5'],  # zoo video and zoo play: a bundled ffmpeg; text and a window
    'export': [
        'onnx>=1.17',  # zoo export: the ONNX format
        'onnxscript>=0.3',  # torch writes ONNX with it
        'onnxruntime>=1.20',  # runs an exported file, to compare it with the policy
    ],
    'minari': ['minari[hdf5]>=0.5'],  # zoo pretrain: demonstrations of Minari's collection
    'docs': [
        'mkdocs-material>=9.5',  # make docs: the documentation as a site
        'mkdocstrings[python]>=0.27',  # pages of the API, made from docstrings
    ],
    'test': [
        'pytest>=8.2',  # tests; importorskip(exc_type=) is new in 8.2
        'pytest-xdist>=3.5',  # tests in parallel
        'hypothesis>=6.100',  # property tests
        'safetensors>=0.4.3',  # this library and zoo read each other's files
    ],
    'dev': [
        'ruff>=0.6',  # lint
        'mypy>=1.11',  # types
        'triton>=3.2; platform_system == "Linux"',  # its interpreter runs the GPU kernels on a CPU
        'types-PyYAML',  # types of pyyaml
        'tensorboard>=2.15',  # W&B asks for it where it reads TensorBoard files
        'playwright>=1.45',  # opens reports in a browser installed on the system
        'nbclient>=0.10',  # runs the notebooks of examples/, as a notebook's user does
        'ipykernel>=6.29',  # the process in which their cells run
        'build>=1.2',  # the test of packaging builds sdist and wheel
        'twine>=5.1',  # checks the built packages
    ],
}
EXTRAS['dev'] = [*EXTRAS['test'], *EXTRAS['dev']]
EXTRAS['dev'] += [*EXTRAS['wandb'], *EXTRAS['mlflow']]  # tests write to their local stores
EXTRAS['dev'] += [*EXTRAS['ray'], *EXTRAS['sweep']]  # tests start Ray on this machine
EXTRAS['dev'] += [
    EXTRA for NAME in ('agents', 'plot', 'video', 'export', 'minari', 'docs') for EXTRA in EXTRAS[NAME]
]  # the tests use these extras
EXTRAS['all'] = [requirement for name in ('box2d', 'mujoco', 'procgen') for requirement in EXTRAS[name]]
README = HERE / 'README.md'

setup(
    name='policy-zoo',
    version=VERSION,
    description='PPO and PPG policies for PyTorch: train, evaluate and ship them by name',
    long_description=README.read_text(encoding='utf-8') if README.exists() else '',
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['LICENSE'],
    python_requires='>=3.10',
    options={
        'bdist_wheel': {'py_limited_api': 'cp310'}
    },  # the C library is loaded by ctypes: one wheel for all Pythons
    ext_modules=[NATIVE['extension']()],  # optional: without a C compiler zoo runs, but more slowly
    package_data={
        'zoo': ['py.typed'],
        'zoo.backend.native': ['*.c', '*.h', '*.inc'],
        'zoo.config': ['names.yaml'],
        'zoo.tools.cli': ['starts/*.txt'],
        'zoo.tools.importers': ['*.yaml'],
        'zoo.tools.results': ['card.md', 'report.html'],
        'zoo.tools.sweep': ['spaces.yaml'],
        'zoo_benchmarks.peers': ['README.md'],
    },
    packages=[
        *find_packages(include=['zoo', 'zoo.*', 'dizoo_configs', 'dizoo_configs.*']),
        *('zoo_benchmarks', 'zoo_benchmarks.peers'),  # zoo bench
    ],
    package_dir={'zoo_benchmarks': 'benchmarks'},
    install_requires=CORE,
    extras_require=EXTRAS,
    entry_points={'console_scripts': ['zoo = zoo.__main__:command']},
    classifiers=[
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
)
