"""Small benchmark outputs of the shapes that the tools print and save (figures made up or from their own documentation)."""

from __future__ import annotations

import json

VLLM = """\
Traffic request rate: inf
Burstiness factor: 1.0 (Poisson process)
Maximum request concurrency: 32
100%|##########| 32/32 [02:30<00:00,  4.71s/it]
============ Serving Benchmark Result ============
Successful requests:                     32
Benchmark duration (s):                  150.87
Total input tokens:                      65536
Total generated tokens:                  32768
Request throughput (req/s):              0.21
Output token throughput (tok/s):         434.40
Total Token throughput (tok/s):          868.80
---------------Time to First Token----------------
Mean TTFT (ms):                          7279.56
Median TTFT (ms):                        7099.88
P99 TTFT (ms):                           10999.46
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          70.14
Median TPOT (ms):                        70.23
P99 TPOT (ms):                           72.63
---------------Inter-token Latency----------------
Mean ITL (ms):                           70.10
==================================================
"""
VLLM_NEW = """\
============ Serving Benchmark Result ============
Successful requests:                     99
Failed requests:                         1
Maximum request concurrency:             16
Request rate configured (RPS):           4.00
Benchmark duration (s):                  42.11
Total input tokens:                      99744
Total generated tokens:                  99000
Output token throughput (tok/s):         2374.72
Peak output token throughput (tok/s):    2704.00
Mean TPOT (ms):                          6.50
==================================================
"""
VLLM_JSON = {
    "date": "20260101-000000",
    "backend": "openai",
    "model_id": "Qwen/Qwen3-32B",
    "tokenizer_id": "Qwen/Qwen3-32B",
    "num_prompts": 40,
    "request_rate": "inf",
    "burstiness": 1.0,
    "max_concurrency": 8,
    "duration": 20.0,
    "completed": 40,
    "failed": 0,
    "total_input_tokens": 40960,
    "total_output_tokens": 5120,
    "output_throughput": 256.0,
    "mean_ttft_ms": 110.5,
    "median_ttft_ms": 100.25,
    "mean_tpot_ms": 30.5,
    "median_tpot_ms": 30.0,
    "mean_itl_ms": 30.4,
    "generated_texts": ["secret text"],
}
SGLANG = """\
============ Serving Benchmark Result ============
Backend:                                 sglang
Traffic request rate:                    inf
Max request concurrency:                 16
Successful requests:                     80
Benchmark duration (s):                  34.09
Total input tokens:                      81920
Total generated tokens:                  40960
Total generated tokens (retokenized):    40950
Output token throughput (tok/s):         1201.50
Concurrency:                             15.60
Accept length:                           2.51
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   6500.00
---------------Time to First Token----------------
Mean TTFT (ms):                          310.20
Median TTFT (ms):                        290.00
---------------Inter-Token Latency----------------
Mean ITL (ms):                           12.40
Median ITL (ms):                         12.00
==================================================
"""
_SGLANG_LINE = {
    "backend": "sglang",
    "dataset_name": "random",
    "request_rate": float("inf"),
    "sharegpt_output_len": None,
    "random_input_len": 1024,
    "random_output_len": 512,
    "random_range_ratio": 1.0,
    "completed": 80,
    "total_input_tokens": 81920,
    "total_output_tokens": 40960,
    "total_output_tokens_retokenized": 40950,
    "mean_ttft_ms": 310.2,
    "mean_itl_ms": 12.4,
    "concurrency": 15.6,
    "accept_length": None,
}
SGLANG_JSONL = "\n".join(
    json.dumps({**_SGLANG_LINE, "max_concurrency": limit, "output_throughput": rate, "mean_tpot_ms": tpot})
    for limit, rate, tpot in ((16, 1201.5, 12.5), (32, 1900.0, 16.0))
)
AIPERF = """\
aiperf profile --model Qwen/Qwen3-0.6B --streaming --concurrency 4
                                NVIDIA AIPerf | LLM Metrics
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━━━━┳━━━━━━━━━━┓
┃                               Metric ┃       avg ┃      min ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━━━━╇━━━━━━━━━━┩
│             Time to First Token (ms) │  7,463.28 │ 7,125.81 │
│                 Request Latency (ms) │ 13,829.40 │ 9,029.36 │
│             Inter Token Latency (ms) │     65.31 │    53.06 │
│     Output Token Throughput Per User │     15.40 │    12.00 │
│                    (tokens/sec/user) │           │          │
│      Output Sequence Length (tokens) │    100.00 │    98.00 │
│       Input Sequence Length (tokens) │    550.00 │   550.00 │
│ Output Token Throughput (tokens/sec) │     61.10 │      N/A │
└──────────────────────────────────────┴───────────┴──────────┘
"""
GENAI_PERF = """\
                              NVIDIA GenAI-Perf | LLM Metrics
┏━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┳━━━━━━━━┓
┃                         Statistic ┃    avg ┃    min ┃
┡━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━╇━━━━━━━━┩
│          Time to first token (ms) │  16.26 │  12.39 │
│          Inter token latency (ms) │   1.85 │   1.55 │
│            Output sequence length │ 261.90 │ 256.00 │
│ Output token throughput (per sec) │ 520.87 │    N/A │
└───────────────────────────────────┴────────┴────────┘
"""
AIPERF_CSV = """\
Metric,avg,min,max,p1,p5,p10,p25,p50,p75,p90,p95,p99,std
Request Latency (ms),6550.36,4996.25,9383.37,5523.64,5641.18,5649.25,5678.54,5799.90,7314.96,8594.21,8980.84,9381.63,1171.14
Time to First Token (ms),"1,588.80",382.24,4121.09,403.48,547.97,641.77,659.03,787.54,2439.00,3695.10,4051.43,4119.33,1189.99
Inter Token Latency (ms),51.76,46.81,56.30,50.41,50.50,50.53,50.86,51.98,52.17,53.18,54.32,55.87,1.23

Metric,Value
Benchmark Duration (sec),15.20
Output Token Throughput (tokens/sec),97.20
"""
AIPERF_JSON = {
    "time_to_first_token": {"unit": "ms", "avg": 20.5, "p50": 20.0},
    "inter_token_latency": {"unit": "us", "avg": 8500.0},
    "output_token_throughput": {"unit": "tokens/sec", "avg": 470.1},
    "output_token_throughput_per_user": {"unit": "tokens/sec/user", "avg": 117.6},
    "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0},
    "input_config": {
        "endpoint": {"model_names": ["Qwen/Qwen3-8B"], "urls": ["http://10.0.0.1:8000"]},
        "loadgen": {"concurrency": 4, "request_rate": None},
    },
}
GUIDELLM = """\
ℹ Request Token Statistics (Completed Requests)
|===========|======|======|======|======|
| Benchmark | Input Tok  || Output Tok ||
| Strategy  | Per Req    || Per Req    ||
|           | Mdn  | p95  | Mdn  | p95  |
|-----------|------|------|------|------|
| concurrent | 51.0 | 62.0 | 49.0 | 65.0 |
| constant  | 51.0 | 62.0 | 49.0 | 65.0 |
|===========|======|======|======|======|

ℹ Request Latency Statistics (Completed Requests)
|===========|=========|========|======|======|=====|=====|=====|=====|
| Benchmark | Request Latency || TTFT       || ITL      || TPOT     ||
| Strategy  | Sec             || ms         || ms       || ms       ||
|           | Mdn     | p95    | Mdn  | p95  | Mdn | p95 | Mdn | p95 |
|-----------|---------|--------|------|------|-----|-----|-----|-----|
| concurrent | 0.4    | 0.5    | 23.2 | 30.9 | 7.8 | 8.0 | 8.1 | 8.4 |
| constant  | 0.4     | 0.5    | 33.2 | 30.9 | 9.8 | 8.0 | 8.1 | 8.4 |
|===========|=========|========|======|======|=====|=====|=====|=====|

ℹ Server Throughput Statistics (All Requests)
|===========|=====|======|=======|======|=======|=======|=======|========|=======|=======|
| Benchmark | Requests               |||| Input Tokens || Output Tokens || Total Tokens ||
| Strategy  | Per Sec   || Concurrency || Per Sec      || Per Sec       || Per Sec      ||
|           | Mdn | Mean | Mdn   | Mean | Mdn   | Mean  | Mdn   | Mean   | Mdn   | Mean  |
|-----------|-----|------|-------|------|-------|-------|-------|--------|-------|-------|
| concurrent | 1.0 | 1.0 | 4.0   | 4.0  | 50.9  | 52.4  | 3.4   | 49.7   | 127.6 | 101.1 |
| constant  | 1.0 | 1.0  | 0.0   | 0.4  | 50.9  | 52.4  | 3.4   | 19.7   | 127.6 | 101.1 |
|===========|=====|======|=======|======|=======|=======|=======|========|=======|=======|
"""
GUIDELLM_JSON = {
    "args": {"model": "meta-llama/Llama-3.1-8B-Instruct", "target": "http://box-17:8000"},
    "benchmarks": [
        {
            "config": {"strategy": strategy},
            "metrics": {
                "request_totals": {"successful": 10, "errored": 0},
                "request_concurrency": {"successful": {"mean": 7.5}},
                "prompt_token_count": {"successful": {"mean": 256.0}},
                "output_token_count": {"successful": {"mean": 128.0}},
                "time_to_first_token_ms": {"successful": {"mean": 90.0, "median": 88.0}},
                "time_per_output_token_ms": {"successful": {"mean": 9.8}},
                "inter_token_latency_ms": {"successful": {"mean": 9.1, "median": 9.0}},
                "output_tokens_per_second": {"successful": {"mean": 790.0}, "total": {"mean": 800.0}},
            },
        }
        for strategy in ({"type_": "synchronous"}, {"type_": "concurrent", "streams": 8}, {"type_": "constant", "rate": 2.0})
    ],
}
LLAMA_MD = """\
ggml_cuda_init: found 2 CUDA devices:
| model                          |       size |     params | backend    | ngl |    sm |            test |                  t/s |
| ------------------------------ | ---------: | ---------: | ---------- | --: | ----: | --------------: | -------------------: |
| qwen2 7B Q4_K - Medium         |   4.36 GiB |     7.62 B | CUDA       |  99 |   row |           pp512 |      7340.20 ± 23.45 |
| qwen2 7B Q4_K - Medium         |   4.36 GiB |     7.62 B | CUDA       |  99 |   row |           tg128 |        120.60 ± 0.59 |
| qwen2 7B Q4_K - Medium         |   4.36 GiB |     7.62 B | CUDA       |  99 | layer |    tg128 @ d512 |        116.71 ± 0.60 |
| qwen2 7B Q4_K - Medium         |   4.36 GiB |     7.62 B | CUDA       |  99 | layer |   pp512+tg128 |        600.00 ± 0.60 |

build: 8cf427ff (5163)
"""
LLAMA_ROW = {
    "build_commit": "8cf427ff",
    "build_number": 5163,
    "cpu_info": "AMD Ryzen 7",
    "gpu_info": "NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 4090",
    "model_filename": "/home/alice/models/Qwen2.5-7B-Instruct-Q4_K_M.gguf",
    "model_type": "qwen2 7B Q4_K - Medium",
    "n_gpu_layers": 99,
    "split_mode": "layer",
    "type_k": "f16",
    "type_v": "f16",
    "n_prompt": 0,
    "n_gen": 128,
    "n_depth": 512,
    "avg_ns": 1076767880,
    "avg_ts": 118.88,
    "stddev_ts": 1.04,
}
LLAMA_JSON = json.dumps([LLAMA_ROW, {**LLAMA_ROW, "n_prompt": 512, "n_gen": 0, "n_depth": 0, "avg_ts": 7100.0}], indent=2)
LLAMA_JSONL = "\n".join(json.dumps(row) for row in json.loads(LLAMA_JSON))
LLAMA_CSV = (
    "build_commit,gpu_info,model_type,n_prompt,n_gen,n_depth,avg_ts,stddev_ts\n"
    '"8cf427ff","NVIDIA GeForce RTX 4090","qwen2 7B Q4_K - Medium","0","128","0","119.9","0.4"\n'
)
PLAIN_CSV = """\
# decode sweep
concurrency,TPOT (ms),output tok/s,strategy,note
1,15.4,65,ep8,first
4,41.7,95.9,ep8,
8,,197.9,ep8,no tpot kept
"""
LONG_CSV = """\
conc,strategy,metric,value,unit
1,tp8,tpot,38.5,ms
1,tp8,decode_tps,26,tok/s
1,tp8,prefill_tps,1914,tok/s
"""
