"""Words, letters, instructions and genes of the zoo: as counts, or whether they occur."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import torch
from sklearn import datasets as sk

from tests.zoo.arrays import Data, some, split


def counts() -> Data:
    """Negative binomial counts of 50 genes along three programmes."""
    rng = np.random.default_rng(0)
    rates = np.exp(0.9 * rng.normal(size=(1200, 3)) @ rng.normal(size=(3, 50)) * 0.6 + rng.normal(size=50))
    depth = rng.uniform(0.7, 1.4, (1200, 1))
    return split(rng.poisson(rng.gamma(5.0, depth * rates / 5.0)))


def text() -> Data:
    """Which of the 60 most frequent words occur in passages of scikit-learn's descriptions of its data sets."""
    loaders = (sk.load_digits, sk.load_wine, sk.load_breast_cancer, sk.load_diabetes, sk.load_iris, sk.load_linnerud)
    words = [w for load in loaders for w in re.findall(r"[a-z]+", load().DESCR.lower())]
    frequent = [w for w in sorted(set(words), key=lambda w: (-words.count(w), w))][:60]
    index = {w: k for k, w in enumerate(frequent)}
    x = np.zeros(((len(words) - 50) // 3, 60))
    for row in range(len(x)):
        for word in words[3 * row : 3 * row + 50]:
            if word in index:
                x[row, index[word]] = 1
    return split(x)


def pbmc() -> Data:
    import scanpy

    cells = scanpy.datasets.pbmc68k_reduced().raw.to_adata()
    x = np.rint(np.expm1(cells.X.toarray()))[:, :150]
    return split(x[x.sum(1) > 10])


def _numpy_texts() -> list[str | None]:
    return [getattr(np, name).__doc__ for name in sorted(dir(np)) if callable(getattr(np, name))]


def _words(texts: list[str | None], length: int, step: int, vocabulary: int) -> np.ndarray:
    """Counts of frequent words in passages."""
    words = [w for t in dict.fromkeys(filter(None, texts)) for w in re.findall(r"[a-z]{2,}", t.lower())]
    frequent = [w for w, _ in Counter(words).most_common(vocabulary)]
    index = {w: k for k, w in enumerate(frequent)}
    x = np.zeros(((len(words) - length) // step, vocabulary))
    for row in range(len(x)):
        for word in words[step * row : step * row + length]:
            if word in index:
                x[row, index[word]] += 1
    return x


def docstrings() -> Data:
    """Which of 80 words occur in passages of 60 words."""
    return split(some(_words(_numpy_texts(), 60, 20, 80) > 0, 3000))


def wordcounts() -> Data:
    """How often 100 words occur in passages of 150 words."""
    return split(some(_words(_numpy_texts(), 150, 40, 100), 1600))


def _module_texts() -> list[str | None]:
    """Docstrings of functions, classes and methods of Python's standard library."""
    names = ("argparse", "asyncio", "collections", "csv", "datetime", "decimal", "email", "http.client", "inspect")
    names += ("itertools", "json", "logging", "os", "pathlib", "random", "re", "shutil", "socket", "statistics")
    names += ("string", "subprocess", "tarfile", "tempfile", "threading", "unittest", "urllib.request", "zipfile")
    texts: list[object] = []
    for name in names:
        module = vars(importlib.import_module(name))
        for value in (module[key] for key in sorted(module) if callable(module[key])):
            texts.append(value.__doc__)
            if isinstance(value, type):
                texts += [getattr(method, "__doc__", None) for method in vars(value).values()]
    return [text for text in texts if isinstance(text, str)]


def modules() -> Data:
    """Which of 70 words occur in passages of 60 words."""
    return split(some(_words(_module_texts(), 60, 12, 70) > 0, 2400))


def modulecounts() -> Data:
    """How often 90 words occur in passages of 150 words."""
    return split(some(_words(_module_texts(), 150, 20, 90), 1400))


def _torch_texts() -> list[str | None]:
    texts = [getattr(getattr(torch, name), "__doc__", None) for name in sorted(dir(torch))]
    return [text for text in texts if isinstance(text, str)]


def manual() -> Data:
    """Which of 70 words occur in passages of 60 words about PyTorch."""
    return split(some(_words(_torch_texts(), 60, 15, 70) > 0, 2400))


def manualcounts() -> Data:
    """How often 90 words occur in passages of 150 words about PyTorch."""
    return split(some(_words(_torch_texts(), 150, 30, 90), 1400))


def handbook() -> Data:
    """Which of 70 words occur in passages of 60 words about SciPy."""
    from scipy import interpolate, linalg, ndimage, optimize, signal, special

    parts = (interpolate, linalg, ndimage, optimize, signal, special)
    texts = [getattr(part, name).__doc__ for part in parts for name in part.__all__]
    return split(some(_words([text for text in texts if isinstance(text, str)], 60, 25, 70) > 0, 2400))


def opcodes() -> Data:
    """How often 80 instructions occur in functions of Python's standard library."""
    import dis
    import types

    names = ("argparse", "ast", "asyncio.base_events", "codecs", "configparser", "copy", "csv", "dataclasses")
    names += ("datetime", "difflib", "doctest", "email.message", "fractions", "ftplib", "gettext", "http.client")
    names += ("inspect", "ipaddress", "logging", "mailbox", "optparse", "pathlib", "pickle", "pydoc", "shutil")
    names += ("smtplib", "socket", "ssl", "statistics", "subprocess", "tarfile", "textwrap", "threading", "tokenize")
    names += ("traceback", "turtle", "typing", "unittest.mock", "uuid", "xml.dom.minidom", "zipfile", "_pydecimal")
    functions: dict[object, Counter[str]] = {}
    for name in names:
        try:
            module = vars(importlib.import_module(name))
        except ImportError:
            continue
        owners = [module, *(vars(value) for value in module.values() if isinstance(value, type))]
        for value in (value for owner in owners for value in owner.values()):
            if isinstance(value, types.FunctionType):
                functions[value.__code__] = Counter(step.opname for step in dis.get_instructions(value))
    counted = [count for count in functions.values() if count.total() >= 30]
    frequent = [op for op, _ in sum(counted, Counter()).most_common(80)]
    x = np.array([[count[op] for op in frequent] for count in counted])
    return split(some(np.minimum(x, 60), 1600))


def _pandas_texts() -> list[str | None]:
    import pandas as pd

    owners = (pd, pd.DataFrame, pd.Series, pd.Index, pd.Timestamp, pd.Timedelta)
    texts = [getattr(getattr(owner, name), "__doc__", None) for owner in owners for name in sorted(dir(owner))]
    return [text for text in texts if isinstance(text, str)]


def guide() -> Data:
    """Which of 70 words occur in passages of 60 words about pandas."""
    return split(some(_words(_pandas_texts(), 60, 25, 70) > 0, 2400))


def letters() -> Data:
    """How often pairs of letters occur in passages about pandas."""
    text = re.sub(r"[^a-z]+", " ", " ".join(dict.fromkeys(_pandas_texts())).lower())
    frequent = [pair for pair, _ in Counter(pairwise(text)).most_common(80)]
    index = {pair: k for k, pair in enumerate(frequent)}
    x = np.zeros((min(1600, len(text) // 400), 80))
    for row in range(len(x)):
        part = text[400 * row : 400 * row + 400]
        for pair in pairwise(part):
            if pair in index:
                x[row, index[pair]] += 1
    return split(x)


def lessons() -> Data:
    """Which of 70 words occur in passages of 60 words about scikit-learn."""
    from sklearn import cluster, decomposition, ensemble, feature_extraction, linear_model, metrics, preprocessing, svm

    parts = (cluster, decomposition, ensemble, feature_extraction.text, linear_model, metrics, preprocessing, svm)
    texts = [getattr(part, name).__doc__ for part in parts for name in sorted(part.__all__)]
    return split(some(_words([text for text in texts if isinstance(text, str)], 60, 25, 70) > 0, 2400))


def nodes() -> Data:
    """How often 60 kinds of syntax occur in functions of NumPy and scikit-learn."""
    import ast
    from pathlib import Path

    import numpy
    import sklearn

    folders = [Path(str(package.__file__)).parent for package in (numpy, sklearn)]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py")) if "tests" not in file.parts]
    counted = []
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8", errors="ignore"))):
            if isinstance(node, ast.FunctionDef):
                count = Counter(type(part).__name__ for part in ast.walk(node))
                if 100 <= count.total() <= 1500:
                    counted.append(count)
    frequent = [kind for kind, _ in sum(counted, Counter()).most_common(60)]
    x = np.array([[count[kind] for kind in frequent] for count in counted])
    return split(some(np.minimum(x, 80), 1600))
