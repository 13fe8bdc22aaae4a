"""Typed JSON: exact values back, nothing executed, nothing imported, nothing large allocated."""

from __future__ import annotations

import base64
import datetime as dt
import enum
import math
import pickle
import struct
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
from format_attacks import mutations, pickle_bombs, refused, survives_damage
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from durable_core.errors import CodecError, CorruptError, FormatError, UsageError
from durable_core.format import canonical, codec

KEY = "checkpoints/g000001-c00000001-00000000/receipt-dp0.json"


def through_bytes(value: Any, **options: Any) -> Any:
    document = canonical.loads(canonical.dumps(codec.encode(value, **options)), key=KEY)
    return codec.decode(document, key=KEY)


def same(one: Any, two: Any) -> bool:
    """Equal in type, value, order and bits, all the way down."""
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        return struct.pack(">d", one) == struct.pack(">d", two)
    if isinstance(one, complex):
        return same(one.real, two.real) and same(one.imag, two.imag)
    if isinstance(one, np.ndarray):
        described = [(a.dtype, a.shape, np.isfortran(a), a.tobytes()) for a in (one, two)]
        return described[0] == described[1]
    if isinstance(one, np.generic):
        return one.dtype == two.dtype and one.tobytes() == two.tobytes()
    if isinstance(one, dict):
        extra = one.default_factory is two.default_factory if isinstance(one, defaultdict) else True
        return extra and same(list(one.items()), list(two.items()))
    if isinstance(one, deque) and one.maxlen != two.maxlen:
        return False
    if isinstance(one, (list, tuple, deque)):
        return len(one) == len(two) and all(map(same, one, two))
    if isinstance(one, dt.datetime):
        return (one, one.fold, one.tzname()) == (two, two.fold, two.tzname())
    return bool(one == two)


NAN_WITH_PAYLOAD = struct.unpack(">d", bytes.fromhex("7ff800000000beef"))[0]
NEGATIVE_NAN = struct.unpack(">d", bytes.fromhex("fff8000000000000"))[0]

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**64, -(2**4000), 10**5000,
    0.0, -0.0, 1.0, 1e16, 0.1, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, math.nan,
    NAN_WITH_PAYLOAD, NEGATIVE_NAN, 1j, complex(-0.0, math.nan),
    "", "text", "\ud800", "\ud83d\ude00", "\U0001f600", "\udc00\ud800", "a\x00b", "$tuple",
    b"", b"\x00\xff", bytearray(b""), bytearray(b"x"),
    (), (1,), ((),), [], [[], ()], {}, {"a": 1}, {"b": 1, "a": 2}, {"$tuple": [1]}, {"": 0, "$": 1},
    {1: "int", "1": "str", 1.5: "float", None: 0, (1, 2): "tuple", b"k": "bytes", frozenset({1}): 2},
    {"\ud800": 1}, {True: 1}, OrderedDict(b=1, a=2), OrderedDict(), defaultdict(list, {"x": [1]}),
    defaultdict(None, {1: 2}), Counter("abracadabra"), Counter(), deque(), deque([1, [2]], maxlen=7),
    deque(maxlen=0), set(), {1, "1", (2, 3), b"x"}, frozenset({1.5, None}), range(3),
    range(-5, 2**70, 3), slice(None), slice(1, None, -1), slice("a", (1,)),
    Path("/a/b"), Path(), PurePosixPath("x/y"), PureWindowsPath("c:\\x"),
    dt.date(1, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 15, 999999), dt.timedelta(-1, 5, 7),
    dt.timedelta.max, dt.datetime(2024, 10, 27, 2, 30, fold=1),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-3, minutes=-30), "NST")),
    np.float32(0.1), np.float64(math.nan), np.int8(-1), np.uint64(2**64 - 1), np.bool_(True),
    np.complex64(1j), np.float16(0.5), np.datetime64("2024-01-01T00:00", "ms"), np.timedelta64(5, "D"),
    np.dtype("float32"), np.dtype(">i4"),
    np.arange(6).reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.array(5),
    np.zeros((0, 3), np.float32), np.zeros((2, 0)), np.array(["ab", "c\x00"]), np.array([b"ab", b"c"]),
    np.array([1, 2], ">u2"), np.array([True, False]), np.arange(10)[::2], np.array([np.nan, -0.0]),
    np.array(["2024-01-01"], "M8[D]"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_exactly_the_same_value_comes_back(value: Any) -> None:
    assert same(through_bytes(value), value)
    assert same(through_bytes([value, {"k": value}]), [value, {"k": value}])


scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(alphabet=st.characters(blacklist_categories=()))
    | st.binary()
    | st.complex_numbers()
    | st.datetimes()
    | st.timedeltas()
    | st.dates()
)
keys = st.text() | st.integers() | st.binary() | st.tuples(st.integers(), st.text())
arrays = hnp.arrays(st.sampled_from(["<f4", "<i8", "|b1", ">u2"]), hnp.array_shapes(min_dims=0, min_side=0))
values = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(OrderedDict)
        | st.lists(inner, max_size=4).map(lambda items: deque(items, maxlen=9))
        | st.sets(st.integers() | st.text() | st.binary(), max_size=4)
    ),
    max_leaves=12,
)


@given(values)
@settings(max_examples=200, deadline=None)
def test_any_nest_of_values_comes_back(value: Any) -> None:
    assert same(through_bytes(value), value)


@given(values)
@settings(max_examples=50, deadline=None)
def test_the_encoding_is_a_function_of_the_value(value: Any) -> None:
    data = canonical.dumps(codec.encode(value))
    assert canonical.dumps(codec.encode(through_bytes(value))) == data


def test_equal_sets_have_equal_documents() -> None:
    ones = {f"item{i}" for i in range(50)}
    others = {f"item{i}" for i in reversed(range(50))}
    assert canonical.dumps(codec.encode(ones)) == canonical.dumps(codec.encode(others))


def test_arrays_are_writable_and_own_their_memory() -> None:
    array = through_bytes(np.arange(5))
    array[0] = 9
    assert array.flags.owndata and array.flags.aligned and array[0] == 9


# --- what is refused -----------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1


class Sub(dict):  # type: ignore[type-arg]
    pass


class Deep(list):  # type: ignore[type-arg]
    pass


class Number(int):
    pass


class Text(str):
    pass


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "stranger",
    [
        Sub(), Deep(), Number(1), Text("x"), Point(1, 2), Colour.RED, object(), len, int, Ellipsis, lambda: 0,
        (i for i in ()), memoryview(b""), np.array([object()]), np.zeros(2, [("a", "i4")]), np.str_("x"),
        np.longdouble(1), np.ma.array([1]), defaultdict(lambda: 0), enum, dt.datetime.now().time(),
        np.zeros(17 * 2**20, np.uint8),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_the_codec_does_not_know_is_refused_with_its_path(stranger: Any) -> None:
    with pytest.raises(CodecError) as caught:
        codec.encode({"optimizer": {"state": [1, ({"x/y": stranger},)]}})
    assert caught.value.path == "optimizer/state/1/0/x%2Fy"
    assert "optimizer/state/1/0/x%2Fy" in str(caught.value)


def test_the_refusal_says_how_to_register() -> None:
    with pytest.raises(CodecError, match=r"register\(type, name, encode, decode\)"):
        codec.encode([Sub()])


def test_a_named_zone_is_refused() -> None:
    zoneinfo = pytest.importorskip("zoneinfo")
    try:
        zone = zoneinfo.ZoneInfo("Europe/Zurich")
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("no zone data on this machine")
    with pytest.raises(CodecError, match="utc"):
        codec.encode(dt.datetime(2024, 1, 1, tzinfo=zone))


def test_values_within_themselves_and_too_deep_are_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = [loop]
    with pytest.raises(CodecError, match="itself") as caught:
        codec.encode({"a": loop})
    assert caught.value.path == "a/self/0"
    deep: Any = 1
    for _ in range(codec.MAX_DEPTH):
        deep = {"z": 1, 1: deep}
    assert same(through_bytes(deep), deep)
    with pytest.raises(CodecError, match="deeper"):
        codec.encode([deep, [[deep]]])


def test_a_value_used_twice_is_no_cycle() -> None:
    shared = [1]
    assert through_bytes([shared, {"a": shared}]) == [[1], {"a": [1]}]


# --- registration --------------------------------------------------------------------------


def test_registered_types_come_back() -> None:
    registry = codec.Registry()
    registry.register(Colour, "test.Colour")
    registry.register(Point, "test.Point", lambda p: list(p), lambda items: Point(*items))
    registry.register(Sub, "test.Sub", dict, Sub)
    registry.register_factory("zero", int)
    value = [Colour.RED, Point(1, Colour.RED), Sub(b=1, a=(2,)), defaultdict(int, a=1)]
    document = canonical.loads(canonical.dumps(codec.encode(value, registry=registry)), key=KEY)
    assert same(codec.decode(document, registry=registry), value)
    with pytest.raises(CodecError, match="not registered"):
        codec.decode(document)


def test_a_name_stays_with_its_type() -> None:
    registry = codec.Registry()
    registry.register(Colour, "test.Colour")
    registry.register(Colour, "test.Colour")
    for type_, name in ((Colour, "other"), (Sub, "test.Colour")):
        with pytest.raises(UsageError, match=r"test\.Colour|other"):
            registry.register(type_, name, lambda x: 0, lambda x: x)
    with pytest.raises(UsageError):
        registry.register(Sub, "test.Sub")
    registry.register_factory("zero", int)
    with pytest.raises(UsageError):
        registry.register_factory("zero", float)


def test_a_class_defined_again_replaces_itself() -> None:
    def define() -> Any:
        class Cell(enum.Enum):
            ONE = 1

        return Cell

    registry = codec.Registry()
    first, second = define(), define()
    registry.register(first, "cell")
    registry.register(second, "cell")
    assert codec.decode(codec.encode(second.ONE, registry=registry), registry=registry) is second.ONE
    with pytest.raises(CodecError):
        codec.encode(first.ONE, registry=registry)


def test_leaves_are_plugged_in_by_path() -> None:
    class Tensor:
        pass

    tensors = {"model/w": Tensor(), "opt/0/m": Tensor()}
    state = {"model": {"w": tensors["model/w"]}, "opt": {0: {"m": tensors["opt/0/m"], "lr": 0.1}}}
    asked = []

    def leaf(value: Any, path: str) -> str | None:
        asked.append(path)
        return path if isinstance(value, Tensor) else None

    document = canonical.loads(canonical.dumps(codec.encode(state, leaf=leaf)), key=KEY)
    assert asked == ["model/w", "opt/0/m"]
    back = codec.decode(document, leaf=tensors.__getitem__)
    assert back["model"]["w"] is tensors["model/w"] and back["opt"][0]["m"] is tensors["opt/0/m"]
    with pytest.raises(FormatError, match="tensor"):
        codec.decode(document)
    with pytest.raises(CodecError):
        codec.encode([object()], leaf=leaf)


# --- attacks -------------------------------------------------------------------------------


def decode(data: bytes) -> Any:
    return codec.decode(canonical.loads(data, key=KEY), key=KEY)


BAD_DOCUMENTS: list[Any] = [
    {"$unknown": 1}, {"$tuple": 1}, {"$tuple": {}}, {"$tuple": [], "a": 1}, {"$": 1}, {"$int": 5},
    {"$int": "zz"}, {"$float": "00"}, {"$float": "7ff8"}, {"$float": 1}, {"$complex": "00" * 15},
    {"$str": "!!!"}, {"$str": "/w=="}, {"$str": 1}, {"$bytes": "a"}, {"$bytes": "YQ==\n"}, {"$bytes": [1]},
    {"$dict": [[1]]}, {"$dict": [[1, 2, 3]]}, {"$dict": [[[], 1]]}, {"$dict": [[1, 2], [1, 3]]},
    {"$dict": {"a": 1}}, {"$dict": ["ab"]}, {"$ordered": 1}, {"$counter": [[1]]}, {"$set": [[]]},
    {"$set": [1, 1]}, {"$frozenset": [{"a": 1}]}, {"$deque": []}, {"$deque": [1, 2, 3]},
    {"$deque": [-1]}, {"$deque": [2**70]}, {"$deque": ["a"]}, {"$defaultdict": []},
    {"$range": [1, 2]}, {"$range": [1, 2, 0]}, {"$range": ["a", 1, 1]}, {"$slice": [1]},
    {"$path": ["path"]}, {"$path": ["no", "x"]}, {"$path": ["path", 1]}, {"$path": "x"},
    {"$date": "2024"}, {"$date": 1}, {"$datetime": ["x", 0, None]}, {"$datetime": ["2024-01-01", 7, None]},
    {"$datetime": ["2024-01-01", 0, [99999, 0, 0, None]]}, {"$timedelta": [10**12, 0, 0]},
    {"$timedelta": ["a", 0, 0]}, {"$tensor": 1}, {"$tensor": "x"}, {"$obj": []}, {"$obj": "ab"},
    {"$array": []}, {"$dtype": "O"}, {"$dtype": "|O8"}, {"$dtype": "f4,f4"}, {"$dtype": "<f16"},
    {"$dtype": 4}, {"$dtype": "<M8[nonsense]"}, {"$scalar": ["<f4", ""]}, {"$scalar": ["|S3", "YWJj"]},
    {"$scalar": ["<f4", "AAAAAAAA"]},
]  # fmt: skip


@pytest.mark.parametrize("document", BAD_DOCUMENTS, ids=repr)
def test_malformed_documents_are_refused(document: Any) -> None:
    refused(decode, canonical.dumps([document]), key=KEY)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        ("<f8", [1250000000]),
        ("<f4", [10**6, 10**6]),
        ("<i8", [2**62, 2]),
        ("<i8", [2**64]),
        ("|S999999999", [10]),
        ("<U99999999", [1]),
        ("|S0", [10**12]),
        ("<f4", [-1]),
        ("<f4", [True]),
        ("<f4", [1.0]),
        ("<f4", ["1"]),
        ("<f4", {"a": 1}),
        ("<f4", 1),
        ("<f4", [1] * 100),
        ("<f4", [0] * 100),
        ("|O8", [1]),
        ("|V8", [1]),
        ("<f4", [2]),
    ],
)
def test_claims_of_ten_gigabytes_allocate_nothing(dtype: str, shape: Any) -> None:
    body = [dtype, shape, "C", base64.b64encode(b"1234").decode()]
    refused(decode, canonical.dumps({"$array": body}), key=KEY)


def test_huge_but_empty_things_cost_nothing() -> None:
    assert decode(b'{"$range":[0,%d,1]}' % 10**18) == range(10**18)
    assert decode(canonical.dumps({"$deque": [10**9]})).maxlen == 10**9


def test_deep_documents_are_refused() -> None:
    document: Any = 1
    for _ in range(100):
        document = {"$tuple": [document]}
    with pytest.raises(FormatError, match="deeper"):
        codec.decode(document, key=KEY)


def test_any_value_in_the_wrong_place_is_a_typed_error() -> None:
    sample = canonical.loads(canonical.dumps(codec.encode(VALUES[:80:3])), key=KEY)
    for what, document in mutations({"state": sample}):
        try:
            codec.decode(document, key=KEY)
        except (CorruptError, CodecError):
            continue
        except Exception as error:  # noqa: BLE001 - reported with the mutation that caused it
            pytest.fail(f"{what}: {error!r}")


def test_truncations_and_flips() -> None:
    value = {"a": (1, 2.5), 3: b"bytes", "t": np.arange(3), "when": dt.timedelta(1), "s": {1, 2}}
    survives_damage(decode, canonical.dumps(codec.encode(value)), key=KEY)


def test_no_pickle_is_executed_wherever_it_is_put(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    tags = [*codec.builtins.DECODERS, "$obj", "$tensor"]
    for bomb in pickle_bombs(trace):
        with pytest.raises(CorruptError):
            decode(bomb)
        text = base64.b64encode(bomb).decode()
        as_array = ["|O8", [1], "C", text], ["|S1", [len(bomb)], "C", text]
        for payload in (text, bomb.decode("latin-1"), [text], *as_array):
            for tag in tags:
                try:
                    back = codec.decode({tag: payload}, key=KEY)
                except (CorruptError, CodecError):
                    continue
                assert isinstance(back, (bytes, bytearray, str, tuple, set, frozenset, np.ndarray, Path))
    assert not trace.exists()
    pickle.loads(pickle_bombs(trace)[0])
    assert trace.exists()  # the bomb is live


@pytest.mark.parametrize(
    "name", ["os.system", "builtins.eval", "collections.OrderedDict", "torch.Tensor", "subprocess:Popen", ""]
)
def test_names_are_never_imported(name: str) -> None:
    with pytest.raises(CodecError, match="not registered"):
        decode(canonical.dumps({"$obj": [name, {"$tuple": ["echo"]}]}))
    with pytest.raises(CodecError, match="not registered"):
        decode(canonical.dumps({"$defaultdict": [name]}))
