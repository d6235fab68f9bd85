"""Configs in files that are read and never run: literals, arguments and calls of code, and YAML."""

from __future__ import annotations

import pytest

from zoo.tools.importers.files import literal_text, read_yaml


@pytest.mark.parametrize(
    'text, value',
    [
        ('dict(a=[1, 2], b=nn.ReLU)', {'a': [1, 2], 'b': 'ReLU'}),
        ("{'a': -1e-3, 'b': (1, None)}", {'a': -1e-3, 'b': [1, None]}),
        ('512 * 20', 10_240),
        ('nn.Tanh()', 'Tanh'),
    ],
)
def test_literal_is_read(text, value):
    assert literal_text(text) == value


@pytest.mark.parametrize('text', ['open("x")', '1 +', '"a" * 10', '9 ** 999', 'f(1)'])
def test_code_is_refused(text):
    with pytest.raises(ValueError):
        literal_text(text)


def test_yaml_has_anchors_merges_and_float_tags(tmp_path):
    path = tmp_path / 'a.yml'
    path.write_text('a: &a\n  n: !!float 1e5\nb:\n  <<: *a\n  m: 2\n')
    assert read_yaml(path) == {'a': {'n': 1e5}, 'b': {'n': 1e5, 'm': 2}}
