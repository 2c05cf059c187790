"""nccl-tests' text in every version's layout, with the damage of real pastes. Figures are those of public runs (2x RTX 2080 Ti,
8x RTX 4090, 5x RTX 4090, 2x H200) or follow from time = size / algbw and busbw = algbw * factor (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcie_sim.errors import InputError
from pcie_sim.importers.imported import Imported
from pcie_sim.importers.nccl_tests import read, sniff
from pcie_sim.importers.source import source_of

CONFIG = (
    "# nThread 1 nGpus {n} minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 "
    "validation: 1 graph: {graph}\n"
)
TITLE = "#                                                              out-of-place                       in-place\n"
HEADER = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
UNITS = "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
FOOT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 6.11168\n#\n"
ROWS8 = (
    "           8             2     float     sum      -1    38.82    0.00    0.00      0    38.16    0.00    0.00      0\n"
    "     1048576        262144     float     sum      -1    216.1    4.85    8.49      0    217.2    4.83    8.45      0\n"
    "   134217728      33554432     float     sum      -1    11382   11.79   20.64      0    11380   11.79   20.64      0\n"
)


def devices(count: int, *, host: str = "node0", name: str = "NVIDIA GeForce RTX 4090", bus: str = "[0000:{:02x}:00]") -> str:
    lines = "".join(
        f"#  Rank {rank:2d} Group  0 Pid  47450 on {host:>10} device {rank:2d} {bus.format(rank + 1)} {name}\n" for rank in range(count)
    )
    return "#\n# Using devices\n" + lines + "#\n"


def table(count: int, rows: str, *, graph: int = 0, head: str = "") -> str:
    return head + CONFIG.format(n=count, graph=graph) + devices(count) + TITLE + HEADER + UNITS + rows + FOOT


def imported(text: str, name: str = "run.log") -> Imported:
    source = source_of(text, name)
    assert sniff(source) is not None
    return read(source)


def remarks(found: Imported, kind: str) -> list[str]:
    return [remark.text for remark in found.remarks if remark.kind == kind]


def times(found: Imported, number: int = 0) -> list[tuple[int | None, bool | None, float, str]]:
    return [(row.bytes, row.in_place, row.value, row.quality) for row in found.measurements[number].rows]


def test_a_plain_run() -> None:
    head = "# nccl-tests version 2.17.6 nccl-headers=23007 nccl-library=23007\n# Collective test starting: all_reduce_perf\n"
    found = imported(table(8, ROWS8, head=head))
    (one,) = found.measurements
    assert (one.kind, one.use, one.machine.gpus, one.machine.gpu) == ("collective", "calibrate", 8, None)
    assert one.software.ccl.version == "2.30.7"
    assert {(row.op, row.ranks, row.launch, row.metric, row.unit) for row in one.rows} == {("all_reduce", 8, "eager", "time", "us")}
    assert times(found)[2:] == [
        (1048576, False, 216.1, "good"),
        (1048576, True, 217.2, "good"),
        (134217728, False, 11382.0, "good"),
        (134217728, True, 11380.0, "good"),
    ]
    assert one.software.options["iters"] == "20"
    assert one.arms["run"].own_threads is False  # one thread drives all eight
    assert [(gpu.index, gpu.name, gpu.bus) for gpu in found.box.gpus][:2] == [
        (0, "NVIDIA GeForce RTX 4090", "0000:01:00.0"),
        (1, "NVIDIA GeForce RTX 4090", "0000:02:00.0"),
    ]
    assert found.remarks == ()


def test_no_host_no_process_no_folder_is_kept() -> None:
    text = "user@secrethost:~/x$ NCCL_COMM_ID=10.1.2.3:555 NCCL_TOPO_FILE=/home/alice/t.xml NCCL_ALGO=TREE ./build/all_reduce_perf -g 8\n"
    found = read(source_of(text + table(8, ROWS8).replace("node0", "secrethost"), "/home/alice/logs/run.log"))
    shown = repr(found.measurements) + repr(found.box) + repr(found.details) + repr([remark.text for remark in found.remarks])
    for word in ("secrethost", "47450", "alice", "10.1.2.3"):
        assert word not in shown
    assert found.measurements[0].software.env == {"NCCL_ALGO": "TREE", "NCCL_TOPO_FILE": "t.xml"}
    assert found.measurements[0].sources == ("run.log",)


def test_graph_launch_by_config_line_and_by_command() -> None:
    assert imported(table(8, ROWS8, graph=10)).measurements[0].rows[0].launch == "graph"
    old = table(8, ROWS8).replace(" graph: 0", "")
    found = imported(old)
    assert found.measurements[0].rows[0].launch == "eager"
    assert "launch (graph or eager) is not said: eager, nccl-tests' default" in remarks(found, "assumed")
    assert imported("$ ./build/all_reduce_perf -b 8 -G 20 -g 8\n" + old).measurements[0].rows[0].launch == "graph"


def test_threads_and_processes_of_their_own() -> None:
    alone = table(8, ROWS8).replace("nThread 1 nGpus 8", "nThread 8 nGpus 1")
    assert imported(alone).measurements[0].arms["run"].own_threads is True


OLD = (
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 \n"
    "#\n# Using devices\n"
    "#   Rank  0 Pid 111111 on node0 device  0 [0x3b] Tesla T4\n"
    "#   Rank  1 Pid 111111 on node0 device  1 [0x86] Tesla T4\n"
    "#\n#                                                     out-of-place                       in-place          \n"
    "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
    "#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)       \n"
    "           8             2   float     sum    20.36    0.00    0.00  0e+00    20.07    0.00    0.00  0e+00\n"
    "  1073741824     268435456   float     sum   268588    4.00    4.00  2e-07   268461    4.00    4.00  2e-07\n"
)


def test_old_layout_error_column_whole_times_and_short_bus() -> None:
    """The column ``error`` is a tolerance, not a count; a time without a point is no root."""
    found = imported(OLD)
    assert times(found) == [
        (8, False, 20.36, "good"),
        (8, True, 20.07, "good"),
        (1073741824, False, 268588.0, "good"),
        (1073741824, True, 268461.0, "good"),
    ]
    assert found.measurements[0].rows[0].op == "all_reduce"  # a reduction without a root, whole buffers, checked in place
    assert [gpu.bus for gpu in found.box.gpus] == ["0000:3b:00.0", "0000:86:00.0"]
    assert any("domain 0 and device 0" in text for text in remarks(found, "assumed"))


def test_out_of_place_half_only_and_runs_of_one_size_become_one_set() -> None:
    one = (
        "# nThread 8 nGpus 1 minBytes {0} maxBytes {0} step: 2(factor) warmup iters: 2 iters: 5 validation: 0 \n"
        + devices(8).replace(" Group  0", "")
        + "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "{1}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1\n#\n"
    )
    text = one.format(2048, "        2048           512     float     sum    62.93    0.03    0.06    N/A\n")
    text += one.format(4294967296, "  4294967296    1073741824     float     sum   477197    9.00   15.75    N/A\n")
    found = imported(text, "x.txt")  # the first table alone might be send_recv's; the second cannot
    assert len(found.measurements) == 1
    assert found.measurements[0].rows[0].op == "all_reduce"
    assert times(found) == [(2048, False, 62.93, "good"), (4294967296, False, 477197.0, "good")]
    assert found.measurements[0].software.options["maxbytes"] == "4294967296"
    assert any("2 runs of one size" in text for text in remarks(found, "note"))


def test_in_place_half_only() -> None:
    """Trace replay leaves 32 blanks for the other half (src/util.cu, writeBenchMarkLineNullBody)."""
    row = "     1048576        262144     float     sum      -1" + " " * 32 + "    217.2    4.83    8.45       0\n"
    assert times(imported(table(8, row))) == [(1048576, True, 217.2, "good")]


def test_a_header_with_one_half() -> None:
    """rccl-tests -O 0 prints the in-place half only, and says so above it."""
    header = "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
    row = "     1048576        262144     float     sum      -1    217.2    4.83    8.45      0\n"
    text = CONFIG.format(n=8, graph=0) + devices(8) + "#                                      {}\n" + header + row
    assert times(imported(text.format("    in-place"))) == [(1048576, True, 217.2, "good")]
    assert times(imported(text.format("out-of-place"))) == [(1048576, False, 217.2, "good")]


def test_rccl_tests() -> None:
    text = (
        table(8, ROWS8)
        .replace("nThread 1 nGpus 8 minBytes 8", "nThreads: 1 nGpus: 8 minBytes: 8")
        .replace("[0000:01:00]", "[0000:01:00.0]")
    )
    (one,) = imported("RCCL version : 2.20.5-HEAD:1234\n" + text).measurements
    assert (one.software.ccl.name, one.software.ccl.version, one.machine.gpus) == ("rccl", "2.20.5", 8)


def test_per_iteration_columns_and_timestamps() -> None:
    header = (
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%"
        "     time   algbw   busbw  #wrong    i_min    i_max    i_p99    i_cv%\n"
    )
    row = (
        "     1048576        262144     float     sum      -1    65.91   15.91   15.91    N/A    64.67    80.67    74.40     2.93"
        "    65.90   15.91   15.91    N/A    64.22    88.93    69.18     3.68"
    )
    text = CONFIG.format(n=2, graph=0) + devices(2) + TITLE + header + row + "\n"
    assert times(imported("./all_reduce_perf\n" + text)) == [(1048576, False, 65.91, "good"), (1048576, True, 65.9, "good")]
    stamped = ROWS8.splitlines()[1] + " 2025-03-01 10:11:12\n"
    assert len(times(imported(table(8, stamped)))) == 2


def test_cpu_time_is_doubtful() -> None:
    found = imported(table(8, ROWS8).replace("root     time", "root  cputime").replace("216.1", "  3.1"))
    assert found.measurements[0].software.options["cpu_time"] == "1"
    assert {row.quality for row in found.measurements[0].rows} == {"doubtful"}
    assert remarks(found, "conflict") == []  # algbw is of the GPU's time: no contradiction


def test_figures_with_exponents() -> None:
    row = "  8589934592    2147483648     float     sum      -1  1.2e+06    7.16   12.53      0  1.2e+06    7.16   12.53      0\n"
    assert times(imported(table(8, row)))[0] == (8589934592, False, 1.2e6, "good")


@pytest.mark.parametrize("prefix", ["[1,0]<stdout>:", "node27: ", "> ", "worker-0  | ", "2025-01-02T03:04:05.123Z ", "0: "])
def test_line_prefixes(prefix: str) -> None:
    text = "".join(prefix + line + "\n" for line in table(8, ROWS8).splitlines())
    assert len(times(imported(text))) == 6


def test_each_mpi_process_is_a_stream() -> None:
    """A build without MPI support: every process prints its own table, here of two GPUs each."""
    rows = "     1048576        262144     float     sum      -1    279.5    3.75    3.75      0    280.2    3.74    3.74      0\n"
    lines = table(2, rows).splitlines()
    mixed = "".join(f"[1,{rank}]<stdout>:{line}\n" for line in lines for rank in (0, 1))
    found = imported(mixed)
    assert [len(one.rows) for one in found.measurements] == [2, 2]
    assert {row.quality for one in found.measurements for row in one.rows} == {"good"}


def test_log_lines_between_and_inside_rows() -> None:
    info = "node-1:11111:11112 [2] NCCL INFO Channel 00 : 1[1] -> 0[0] via SHM/direct/direct\n"
    broken = (
        "     1048576        262144     float     sum      -1" + info + info
        + "    216.1    4.85    8.49      0" + info + "    217.2    4.83    8.45      0\n"
    )  # fmt: skip
    found = imported(table(8, "\n\n" + broken + info + "\n\n"))
    assert times(found) == [(1048576, False, 216.1, "good"), (1048576, True, 217.2, "good")]
    assert any("put together" in text for text in remarks(found, "note"))


def test_a_row_put_together_wrongly_is_dropped() -> None:
    broken = "     1048576        262144     float     sum      -1node1:1:1 [0] NCCL INFO x\n"
    broken += "    999.9    4.85    8.49      0    217.2    4.83    8.45      0\n"
    found = imported(table(8, ROWS8 + broken))
    assert len(times(found)) == 6
    assert "a row is not whole: left out" in remarks(found, "cut")


def test_ranks_and_settings_from_log_lines() -> None:
    text = (
        "node0:1:2 [4] NCCL INFO NCCL version 2.28.9+cuda13.0\n"
        "node0:1:2 [4] NCCL INFO NCCL_P2P_DISABLE set by environment to 1\n"
        "node0:1:2 [4] NCCL INFO Init timings - ncclCommInitAll: rank 2 nranks 5 total 0.53\n" + TITLE + HEADER + UNITS +
        "    33554432       8388608     float     sum      -1   2174.8   15.43   24.69      0   2170.2   15.46   24.74      0\n"
    )  # fmt: skip
    (one,) = imported(text).measurements
    assert (one.machine.gpus, one.software.ccl.version, one.software.cuda, one.software.p2p) == (5, "2.28.9", "13.0", "off")
    (one,) = imported(text.replace("nranks 5", "nranks 0")).measurements
    assert one.machine.gpus == 5  # 24.69 / 15.43 is 2 * 4 / 5


def test_several_runs_and_ops_by_command_line() -> None:
    gather = "           0             0     float    none      -1     0.33    0.00    0.00      0     0.36    0.00    0.00      0\n"
    gather += "     1048576        131072     float    none      -1    181.1    5.79    2.89      0    179.1    5.85    2.93      0\n"
    text = "$ ./build/all_reduce_perf -g8\n" + table(8, ROWS8) + "\n$ mpirun -np 2 ./build/all_gather_perf -g2\n" + table(2, gather)
    found = imported(text, "two.txt")
    assert [(one.id, one.rows[0].op, one.machine.gpus) for one in found.measurements] == [
        ("two-1", "all_reduce", 8),
        ("two-2", "all_gather", 2),
    ]
    assert remarks(found, "ignored") == ["rows of size 0 are left out"]


def test_op_by_columns() -> None:
    """broadcast has a root and no reduction; only AlltoAll leaves its in-place results unchecked among those that share the size."""
    rows = "        1024           256     float    none       0    12.04    0.09    0.09      0    11.56    0.09    0.09      0\n"
    assert imported(table(2, rows)).measurements[0].rows[0].op == "broadcast"
    rows = "     1048576        131072     float    none      -1    151.6    6.92    3.46      0    150.7    6.96    3.48    N/A\n"
    found = imported(table(2, rows))
    assert found.measurements[0].rows[0].op == "all_to_all"
    assert remarks(found, "assumed") == ["the test is not named: all_to_all by its columns"]


def test_op_that_the_columns_leave_open_comes_from_the_file_name_or_not_at_all() -> None:
    rows = "     1048576        131072     float    none      -1    151.6    6.92    3.46    N/A    150.7    6.96    3.48    N/A\n"
    assert imported(table(2, rows), "box_allgather.log").measurements[0].rows[0].op == "all_gather"
    found = imported(table(2, rows), "box.log")
    assert found.measurements == ()
    assert any("all_gather or all_to_all" in text for text in remarks(found, "ignored"))


def test_rows_alone_tell_the_ranks_of_an_all_reduce() -> None:
    """2 (n - 1) / n = 1.5 at four ranks."""
    rows = (
        "    16777216       4194304     float     sum      -1   1993.2    8.42   12.63      0   1979.1    8.48   12.72      0\n"
        "    33554432       8388608     float     sum      -1   3966.7    8.46   12.69      0   3942.4    8.51   12.77      0\n"
        "    67108864      16777216     float     sum      -1   7888.2    8.51   12.76      0   78"
    )
    found = imported(rows)
    assert (found.measurements[0].machine.gpus, len(found.measurements[0].rows)) == (4, 5)  # the half before the cut is whole
    assert "the ranks are not said: 4 by the table's own figures" in remarks(found, "assumed")


def test_rows_alone_of_too_few_digits_are_refused() -> None:
    rows = "           8             2     float     sum      -1    40.64    0.00    0.00      0    45.02    0.00    0.00      0\n"
    with pytest.raises(InputError, match=r"^cut\.log:2: how many ranks took part is not said"):
        read(source_of("\n" + rows, "cut.log"))


def test_two_runs_mixed_line_by_line() -> None:
    line = "%12d  %12d     float     sum      -1    40.64    0.00    0.00      0    45.02    0.00    0.00      0\n"
    rows = "".join(line % (size, size // 4) for size in (8, 16, 32, 8, 64, 16, 128))
    with pytest.raises(InputError, match=r"mixed\.log:2: rows of two tables are mixed line by line"):
        read(source_of(HEADER + rows, "mixed.log"))
    found = imported(table(8, rows))
    assert {row.quality for row in found.measurements[0].rows} == {"unreliable"}


def test_a_repeated_table_is_kept_whole() -> None:
    found = imported(table(8, ROWS8 * 3))
    assert len(found.measurements[0].rows) == 18
    assert {row.quality for row in found.measurements[0].rows} == {"good"}


def test_handedited_first_column_and_rows_of_several_rank_counts() -> None:
    """busbw / algbw is 1.75 over 8 ranks, 1.875 over 16."""
    text = (
        " nodes       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
        "   1   1073741824     268435456     float     sum   8142.6  131.87  230.77  2e-07   8141.2  131.89  230.81  2e-07\n"
        "   2   1073741824     268435456     float     sum    35215   30.49   57.17  4e-07    35198   30.51   57.20  4e-07\n"
    )
    found = imported(text)
    assert [(one.machine.gpus, len(one.rows)) for one in found.measurements] == [(8, 2), (16, 2)]
    assert any("taken apart" in text for text in remarks(found, "assumed"))
    assert any("'size'" in text for text in remarks(found, "ignored"))


def test_one_rank_is_no_measure() -> None:
    rows = "    33554432       8388608     float    none      -1    18.48  1816.16    0.00      0     0.05  619657.10    0.00      0\n"
    found = imported(table(1, rows))
    assert found.measurements == ()
    assert any("one rank" in text for text in remarks(found, "ignored"))
    assert len(found.box.gpus) == 1


def test_ranks_that_share_a_gpu_are_unreliable() -> None:
    text = table(2, ROWS8.replace("8.49", "4.85").replace("8.45", "4.83").replace("20.64", "11.79"))
    found = imported(text.replace("device  1 [0000:02:00]", "device  0 [0000:01:00]"))
    assert {row.quality for row in found.measurements[0].rows} == {"unreliable"}


def test_wrong_elements_and_failed_check() -> None:
    found = imported(table(8, ROWS8.replace("11.79   20.64      0    11380", "11.79   20.64     12    11380")))
    assert [quality for _size, _inside, _value, quality in times(found)] == ["good"] * 4 + ["unreliable", "good"]
    found = imported(table(8, ROWS8).replace(" 0 OK", " 3 FAILED"))
    assert {row.quality for row in found.measurements[0].rows} == {"unreliable"}


def test_rows_that_contradict_themselves_or_physics_are_doubtful() -> None:
    found = imported(table(8, ROWS8.replace("216.1", "116.1")))
    assert [row[3] for row in times(found)] == ["good", "good", "doubtful", "good", "good", "good"]
    assert any("contradict" in text for text in remarks(found, "conflict"))
    fast = "   134217728      33554432     float     sum      -1    60.00 2236.96 3914.68      0    11380   11.79   20.64      0\n"
    assert [row[3] for row in times(imported(table(8, fast)))] == ["doubtful", "good"]


def test_device_lines_that_disagree_with_the_figures() -> None:
    found = imported(table(2, ROWS8, head="# Collective test starting: all_reduce_perf\n"))
    assert {row.quality for row in found.measurements[0].rows} == {"doubtful"}
    assert any("not that of all_reduce over 2 ranks" in text for text in remarks(found, "conflict"))


def test_several_hosts() -> None:
    text = table(8, ROWS8)
    for rank in range(4, 8):
        text = text.replace(
            f"#  Rank {rank:2d} Group  0 Pid  47450 on      node0 device {rank:2d}",
            f"#  Rank {rank:2d} Group  0 Pid  47450 on      node1 device {rank - 4:2d}",
        )
    found = imported(text)
    assert found.measurements[0].software.options["nodes"] == "2"
    assert len(found.box.gpus) == 4


def test_devices_that_are_not_the_first_ones_are_named() -> None:
    text = table(2, ROWS8.replace("8.49", "4.85").replace("8.45", "4.83").replace("20.64", "11.79")).replace("device  1 ", "device  5 ")
    assert imported(text).measurements[0].software.options["devices"] == "0,5"
    assert "devices" not in imported(table(8, ROWS8)).measurements[0].software.options


def test_header_only_keeps_the_gpus() -> None:
    found = imported(CONFIG.format(n=8, graph=0) + devices(8) + TITLE + HEADER[:70])
    assert (len(found.box.gpus), found.measurements) == (8, ())
    assert remarks(found, "cut") == ["a run without a single whole row"]


def test_aggregation_is_noted() -> None:
    found = imported(table(8, ROWS8).replace("agg iters: 1", "agg iters: 4"))
    assert any("-m 4" in text for text in remarks(found, "note"))


def test_tests_that_are_not_modelled() -> None:
    found = imported("# Collective test starting: gather_perf\n" + table(8, ROWS8))
    assert found.measurements == ()
    assert any("gather is no collective that is modelled" in text for text in remarks(found, "ignored"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 2000\nTest NCCL failure common.cu:210 'invalid usage'\n",
         r"bad\.log:1: holds no table: the run failed with 'Duplicate GPU detected"),
        ("./build/test/single/all_reduce_test 10000000 2 0 1\n       N    type      op     time  algbw  busbw\n1000    char\n",
         r"bad\.log:2: is the table of NCCL 1's tests"),
        (HEADER, r"bad\.log:1: "),
        (HEADER + "           8             2     float     sum", r"bad\.log:2: the table breaks off in its first row"),
    ],
)  # fmt: skip
def test_refusals_name_file_line_and_reason(text: str, why: str) -> None:
    source = source_of(text, "bad.log")
    assert sniff(source) is not None
    with pytest.raises(InputError, match=why):
        read(source)


def test_private_parts_of_errors_are_left_out() -> None:
    text = "host7: Test NCCL failure common.cu:210 'system error 10.1.2.3<4711> /home/bob/x'\n .. host7 pid 99: Test failure common.cu:1\n"
    with pytest.raises(InputError) as caught:
        read(source_of(text, "e.log"))
    assert not any(word in str(caught.value) for word in ("host7", "10.1.2.3", "bob"))


@pytest.mark.parametrize(
    "text", ["GPU0\tGPU1\n X \tPIX\n", "{}", "model: float\n1 2 float\n", "size,count,type\n", "8 2 float is a sentence about 3 things\n"]
)
def test_other_files_are_not_taken(text: str) -> None:
    assert sniff(source_of(text, "x")) is None


def test_bad_sizes_and_figures_are_left_out() -> None:
    rows = (
        "          -8             2     float     sum      -1    38.82    0.00    0.00      0    38.16    0.00    0.00      0\n"
        "          16             4     float     sum      -1      nan    0.00    0.00      0      inf    0.00    0.00      0\n"
        "          16             4     float     sum      -1    -1.00    0.00    0.00      0     0.00    0.00    0.00      0\n"
        "9223372036854775807    4     float     sum      -1    38.82    0.00    0.00      0    38.16    0.00    0.00      0\n"
        f"{'9' * 5000}             4     float     sum      -1    38.82    0.00    0.00      0    38.16    0.00    0.00      0\n"
    )
    found = imported(table(8, rows + ROWS8))
    assert len(found.measurements[0].rows) == 6
    assert "rows above 2^60 bytes are left out" in remarks(found, "ignored")


def test_a_million_ranks_take_bounded_time() -> None:
    lines = "".join(f"#  Rank {rank} Group  0 Pid  1 on n device  0 [0000:01:00] X\n" for rank in range(300_000))
    found = imported(CONFIG.format(n=8, graph=0) + lines + HEADER + ROWS8)
    assert found.measurements == ()
    assert any("at most 4096" in text for text in remarks(found, "cut"))


@pytest.mark.parametrize(
    "unit", ["a", " ", "1 ", "a:1:1 [", "\t8 ", "8 2 float ", "[1,0]<stdout>:", "Rank  0 Pid ", "size count type ", "NCCL INFO ", "-"]
)
def test_long_lines_take_linear_time(unit: str) -> None:
    text = ("# nThread 1\nNCCL " + unit * (19_000 // len(unit)) + "\n") * 40
    with contextlib.suppress(InputError):
        read(source_of(text, "long"))


@pytest.mark.parametrize(
    "line", [" " * 19_000, "\t" * 160, "#" + " " * 90 + "N" + " " * 90, "size" + " " * 79 + "count", "Rank " * 3000, "a-" * 9000 + "NCCL "]
)
def test_looking_for_the_format_takes_linear_time(line: str) -> None:
    source = source_of("x\n" + (line + "\n") * (4_000_000 // len(line)), "long")
    assert sniff(source) is None


@given(st.text())
def test_any_text(text: str) -> None:
    source = source_of("#" + text, "fuzz")
    sniff(source)
    with contextlib.suppress(InputError):
        read(source)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1200),
            st.sampled_from(["", "\n", " ", "0", "nan", "NCCL INFO ", "node1:1:1 [0] NCCL INFO x", "\t", "#"]),
            st.integers(0, 30),
        ),
        max_size=8,
    )
)
def test_any_damage_to_a_real_table(cuts: list[tuple[int, str, int]]) -> None:
    text = table(8, ROWS8)
    for at, put, drop in cuts:
        text = text[:at] + put + text[at + drop :]
    source = source_of(text, "fuzz")
    try:
        found = read(source)
    except InputError:
        return
    for one in found.measurements:
        assert all(row.value > 0 for row in one.rows)


def test_rows_without_numbers_are_named() -> None:
    """nan and inf come from a clock that stood still (size over 0); no size has more than 19 digits (2^63)."""
    nan = "        1024           256     float     sum      -1      nan    0.00    0.00      0      inf     inf     inf      0\n"
    half = "        2048           512     float     sum      -1      inf    0.00    0.00      0    38.10    0.05    0.09      0\n"
    long = " " + "1" * 400 + "   256     float     sum      -1    38.10    0.05    0.09      0    38.10    0.05    0.09      0\n"
    text = table(8, ROWS8 + nan + half + long)
    lines = {part: text[: text.index(part)].count("\n") + 1 for part in (nan, half, long)}
    found = imported(text)
    assert [(remark.kind, remark.line, remark.text) for remark in found.remarks if remark.kind in ("ignored", "cut")] == [
        ("ignored", lines[nan], "a row's times or bandwidths are no numbers (nan or inf): left out"),
        ("ignored", lines[half], "the times or bandwidths of half a row are no numbers (nan or inf): left out"),
        ("ignored", lines[long], "a row has a size or count of more than 19 digits: left out"),
    ]
    assert sorted({row.bytes for row in found.measurements[0].rows}) == [8, 2048, 1048576, 134217728]
    with pytest.raises(InputError, match=r"run\.log:4: a row's times or bandwidths are no numbers"):
        read(source_of(CONFIG.format(n=8, graph=0) + HEADER + UNITS + nan, "run.log"))
