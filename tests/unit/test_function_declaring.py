import contextlib
import dataclasses
import inspect
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgpu
from pgpu.errors import RequestError
from pgpu.functions.api import (
    Batch,
    CacheUse,
    Context,
    Declaration,
    DirectoryMount,
    SecretUse,
    attached_declaration,
    default_name,
    dump_declaration,
    dump_served,
    parse_declaration,
    parse_project,
)
from pgpu.units import GIB, KIB, MIB

batches = st.none() | st.builds(Batch, st.integers(1, 65536), st.floats(0, 60))
plain = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
declarations = st.builds(
    Declaration,
    memory_bytes=st.none() | st.integers(MIB, 2**50),
    compute_share=st.none() | st.floats(0.01, 1),
    gpus=st.integers(1, 64),
    concurrency=st.integers(1, 1024),
    batch=batches,
    timeout_seconds=st.floats(0.001, 1000),
    is_idempotent=st.booleans(),
    max_body_bytes=st.integers(0, 2**40),
    retry_batches=st.booleans(),
    min_replicas=st.integers(0, 3),
    max_replicas=st.integers(3, 9),
    target_concurrency=st.none() | st.integers(1, 64),
    max_wait_seconds=st.floats(0.01, 10),
    network=st.none() | st.just("bridge"),
    requirements=st.lists(st.text("abc", min_size=1)).map(tuple),
    arguments=st.dictionaries(st.text("abc", min_size=1), plain),
    cache=st.builds(CacheUse, st.text("abc", min_size=1), st.just("/cache"), st.none() | st.just("0123456789ab")),
    fill=st.none() | st.just("python fetch.py"),
    mounts=st.lists(st.builds(DirectoryMount, st.text("/a", min_size=1), st.just("/m"), st.booleans())).map(tuple),
    secrets=st.lists(st.builds(SecretUse, st.text("abc", min_size=1), st.none() | st.just("TOKEN"))).map(tuple),
)


def test_a_decorated_class_is_that_class_and_carries_its_declaration() -> None:
    class Detector:
        pass

    decorate = pgpu.function(memory="4GiB", compute="25%", batch=Batch(16), timeout="30s", max_body="512KiB")
    assert decorate(Detector) is Detector
    assert attached_declaration(Detector()) == Declaration(
        memory_bytes=4 * GIB,
        compute_share=0.25,
        gpus=1,
        batch=Batch(16),
        timeout_seconds=30,
        max_body_bytes=512 * KIB,
    )
    assert attached_declaration(len) == Declaration()


def test_what_cannot_carry_a_declaration_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot carry"):
        pgpu.function(concurrency=2)(len)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"memroy": "4GiB"}, "'memroy' is no key"),
        ({"memory": "4G"}, "memory: '4G' is ambiguous"),
        ({"memory": "4GiB", "gpus": 0}, "without a GPU"),
        ({"compute": "130%"}, "compute: '130%'"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": True}, "not a whole number"),
        ({"memory": 1.5}, "memory"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "0s"}, "timeout is 0"),
        ({"batch": {"max_size": 4, "wait": 1}}, "batch: 'wait' is not known"),
        ({"batch": {}}, "batch: max_size is missing"),
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas 3 is above max_replicas 2"),
        ({"max_wait": "1us"}, "max_wait"),
        ({"target_concurrency": 0}, "target_concurrency is 0"),
        ({"requirements": "numpy"}, "requirements: 'numpy' is not a list"),
        ({"arguments": [1]}, "arguments"),
        ({"public": "yes"}, "neither true nor false"),
        ({"env": ["A=1"]}, "env: .* is not a table"),
        ({"env": {"A": 8}}, "env: the value of 'A' is not text"),
        ({"env": {"A B": "1"}}, "env: 'A B' is not a variable's name"),
        *(
            ({"mounts": [f"/srv:{place}"]}, "nothing can be mounted|is no mount")
            for place in ("/", "x", "/run", "/tmp/x", "/a/../function/b", "/.pgpu-sockets", "//x", "/w:rx", "")
        ),
        ({"cache": "weights"}, "is no cache"),
        ({"cache": "../w:/cache"}, "is no cache"),
        ({"cache": "w@latest:/cache"}, "is no cache"),
        ({"cache": "w:/function"}, "nothing can be mounted"),
        ({"cache": "w:/cache", "mounts": ["/x:/cache/x"]}, "both at /cache"),
        ({"cache": "w:/cache", "fill": "a\0b"}, "is no command"),
        ({"fill": "python fetch.py"}, "none is named"),
        ({"cache": "w:/cache", "fill_secrets": ["token"]}, "given to the command"),
        ({"secrets": ["a.b:env"]}, "no form of a secret"),
        ({"secrets": "token"}, "secrets: 'token' is not a list"),
        ({"secrets": ["../token"]}, "secrets: '../token' is not a secret's name"),
        ({"secrets": ["token:file"]}, "secrets: 'file' is no form of a secret"),
        ({"secrets": ["token:env=LD_PRELOAD"]}, "LD_PRELOAD"),
        *(({"env": {name: "1"}}, name) for name in ("PGPU_HOST", "LD_PRELOAD", "PYTHONPATH")),
    ],
)
def test_a_wrong_word_is_refused_in_one_line_with_a_hint(words: dict[str, Any], said: str) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        parse_declaration(words)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@given(declarations)
def test_a_declaration_is_read_back_as_it_was_written(declaration: Declaration) -> None:
    assert parse_declaration(dump_declaration(declaration)) == declaration


@given(declarations, declarations)
def test_later_words_go_over_earlier_ones(before: Declaration, after: Declaration) -> None:
    words = dump_declaration(after)
    merged = parse_declaration(words, before)
    assert {**dump_declaration(before), **words} == dump_declaration(merged)


def test_variables_are_overridden_one_by_one_and_stay_off_the_command_line() -> None:
    declared = parse_declaration({"env": {"MODEL": "small", "MODE": "fast"}, "concurrency": 2})
    merged = parse_declaration({"env": {"MODEL": "large"}}, declared)
    assert merged.environment == {"MODEL": "large", "MODE": "fast"}
    assert parse_declaration({"env": None}, declared) == Declaration(concurrency=2)
    assert dump_served(merged) == {"concurrency": 2}


def test_a_secret_is_a_variable_on_request_alone() -> None:
    uses = parse_declaration({"secrets": ["token", "key:env", "hf-token:env=HF_TOKEN"]}).secrets
    assert [each.variable for each in uses] == [None, "key", "HF_TOKEN"]


@pytest.mark.parametrize(
    ("words", "declared", "note"),
    [
        ({"minimum": 1}, Declaration(min_replicas=1), "minimum is now min_replicas"),
        ({"maximum": 4}, Declaration(max_replicas=4), "maximum is now max_replicas"),
        ({"idle": "2s"}, Declaration(scale_to_zero_after_seconds=2), "idle is now scale_to_zero_after"),
        ({"keep_warm": "auto"}, Declaration(), "keep_warm has no effect"),
    ],
)
def test_a_name_of_before_is_accepted_with_one_line(words: dict[str, Any], declared: Declaration, note: str) -> None:
    with pytest.warns(DeprecationWarning, match=note) as said:
        assert parse_declaration(words, Declaration()) == declared
    assert len(said) == 1
    with pytest.warns(DeprecationWarning, match=note):
        pgpu.function(**words)


def test_a_gpu_function_is_made_one_for_the_cpu_by_one_word() -> None:
    declared_so = parse_declaration({"memory": "4GiB", "compute": "25%", "concurrency": 2})
    assert parse_declaration({"gpus": 0}, declared_so) == Declaration(concurrency=2)
    assert parse_declaration({"memory": None, "compute": None, "gpus": None}, declared_so) == Declaration(concurrency=2)


WORDS = list(inspect.signature(pgpu.function).parameters)


@given(st.dictionaries(st.sampled_from(WORDS), plain | st.lists(plain, max_size=2)))
def test_words_do_nothing_but_declare_or_be_refused(words: dict[str, Any]) -> None:
    with contextlib.suppress(RequestError), warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        assert isinstance(parse_declaration(words), Declaration)


def test_the_decorator_takes_every_word_and_no_other() -> None:
    assert parse_declaration(dict.fromkeys(WORDS)) == Declaration()
    of_before = {"minimum", "maximum", "idle", "keep_warm"}
    assert len(WORDS) == len(dataclasses.fields(Declaration)) + len(of_before & {*WORDS})


def test_a_project_file_names_functions_and_is_read_strictly() -> None:
    found = parse_project(
        '[function.detector]\napp = "app.py:Detector"\nmemory = "2GiB"\n[function.detector.arguments]\nn = 3'
    )
    assert found["detector"].app == "app.py:Detector"
    assert parse_declaration(found["detector"].words).arguments == {"n": 3}
    for wrong in (
        "function = 3",
        "[function.A_B]\n",
        "[function.a]\nmemory = 3.5",
        "[function.a]\napp = 3",
        "[",
        "[function]\na = 1",
    ):
        with pytest.raises(RequestError):
            parse_project(wrong)


def test_a_function_is_named_after_its_callable() -> None:
    assert [default_name(each) for each in ("TextEmbedding", "detect_all", "Outer.HTTPServer")] == [
        "text-embedding",
        "detect_all",
        "http-server",
    ]


def test_a_context_knows_how_long_its_caller_waits() -> None:
    assert not Context().is_cancelled
    assert Context(deadline_seconds=0.0).is_cancelled
    assert Context(ask_cancelled=lambda: True).is_cancelled


def test_pgpu_offers_what_an_author_writes_and_nothing_else() -> None:
    assert (pgpu.Batch, pgpu.Context) == (Batch, Context)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = pgpu.nonsense
