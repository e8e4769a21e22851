"""Texts in the form of ``benchmark_model`` and ``onnxruntime_perf_test``, written after logs that are public.

The forms are those of the logs in issues 53138 of tensorflow/tensorflow and 999 of google/XNNPACK (tables with tabs, lines
without INFO), of newer logs with wide columns and the operators of XNNPACK in the table, of the sources in
``tensorflow/lite/profiling`` and ``onnxruntime/test/perftest``, and of Arm's learning paths for onnxruntime_perf_test. `PRINTED`
and some lines keep the numbers of these logs; operators and the other numbers are made up.
"""

OLD = """STARTING!
Loaded model ./model.tflite
Initialized session in 17.187ms.
Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
count=1 curr=3512391

Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
count=50 first=2990275 curr=2913402 min=2727568 max=3189954 avg=2.95034e+06 std=109798

Inference timings in us: Init: 17187, First inference: 3512391, Warmup (avg): 3.51239e+06, Inference (avg): 2.95034e+06
Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE
Peak memory footprint (MB): init=4.92969 overall=138.809
"""
ANDROID = """I tflite  : count=4 first=211669 curr=1 min=1 max=211669 avg=211669 std=9
I tflite  : count=1 curr=140990 p5=140990 median=140990 p95=140990
I tflite  : Inference timings in us: Init: 92318, First inference: 187533, Warmup (avg): 211669, Inference (avg): 140990
I tflite  : Memory footprint delta from the start of the tool (MB): init=54.2852 overall=73.4102
"""
RESULTS = """model,0.00183404,36696064,96,0
model,0.00190312,36696064,96,1
model,1.5e-05,36696064,96,2

Min Latency: 0.00183404 s
P999 Latency: 0.00190312 s
"""

OPERATORS = """INFO: STARTING!
INFO: Log parameter values verbosely: [0]
INFO: Num threads: [2]
INFO: Graph: [/data/local/tmp/model_int8.tflite]
INFO: Signature to run: [seq_32]
INFO: Enable op profiling: [1]
INFO: #threads used for CPU inference: [2]
INFO: Loaded model /data/local/tmp/model_int8.tflite
INFO: Created TensorFlow Lite XNNPACK delegate for CPU.
INFO: The input model file size (MB): 4.56118
INFO: Initialized session in 32.163ms.
INFO: Running benchmark for at least 1 iterations and at least 0.5 seconds but terminate if exceeding 150 seconds.
INFO: count=32 first=19834 curr=15648 min=14936 max=21608 avg=15997.4 std=1663 p5=15000 median=15500 p95=17000

INFO: Running benchmark for at least 50 iterations and at least 1 seconds but terminate if exceeding 150 seconds.
INFO: count=64 first=16067 curr=15102 min=14661 max=17579 avg=15517.6 std=551 p5=14800 median=15410 p95=16600

INFO: Inference timings in us: Init: 32163, First inference: 19834, Warmup (avg): 15997.4, Inference (avg): 15517.6
INFO: Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE to the actual memory footprint of the model at runtime. Take the information at your discretion.
INFO: Memory footprint delta from the start of the tool (MB): init=22.0273 overall=34.8281
INFO: Profiling Info for Benchmark Initialization:
============================== Run Order ==============================
                                     [node type]          [first]        [avg ms]            [%]          [cdf%]          [mem KB]        [times called]  [Name]
                         ModifyGraphWithDelegate            6.348           6.348        55.640%         55.640%          7148.000                1       ModifyGraphWithDelegate/0
                                 AllocateTensors            5.061           5.061        44.360%        100.000%         10292.000                1       AllocateTensors/0

Number of nodes executed: 2
============================== Summary by node type ==============================
                                     [Node type]          [count]         [avg ms]          [avg %]         [cdf %]       [mem KB]        [times called]
                         ModifyGraphWithDelegate                1            6.348          55.640%         55.640%       7148.000                1
                                 AllocateTensors                1            5.061          44.360%        100.000%      10292.000                1

Timings (microseconds): count=1 curr=11409
Memory (bytes): count=0
2 nodes observed



INFO: Operator-wise Profiling Info for Regular Benchmark Runs:
============================== Run Order ==============================
                                     [node type]          [first]        [avg ms]            [%]          [cdf%]          [mem KB]        [times called]  [Name]
                                EMBEDDING_LOOKUP            0.199           0.203         1.328%          1.328%             0.000                1       [bert/embeddings]:0
        Fully Connected (NC, QD8, F32, QC8W) GEMM           0.398           0.407         2.658%          3.986%             0.000               13       Delegate/Fully Connected (NC, QD8, F32, QC8W) GEMM:0
                                    Add (ND, F32)           0.009           0.003         0.061%         31.332%             0.000                3       Delegate/Add (ND, F32):16

============================== Top by Computation Time ==============================
                                     [node type]          [first]        [avg ms]            [%]          [cdf%]          [mem KB]        [times called]  [Name]
        Fully Connected (NC, QD8, F32, QC8W) GEMM           0.398           0.407         2.658%          3.986%             0.000               13       Delegate/Fully Connected (NC, QD8, F32, QC8W) GEMM:0

Number of nodes executed: 3
============================== Summary by node type ==============================
                                     [Node type]          [count]         [avg ms]          [avg %]         [cdf %]       [mem KB]        [times called]
        Fully Connected (NC, QD8, F32, QC8W) GEMM               1            5.236          90.000%         90.000%          0.000               13
                                EMBEDDING_LOOKUP                1            0.203           9.000%         99.000%          0.000                1
                                    Add (ND, F32)               1            0.009           1.000%        100.000%          0.000                3

Timings (microseconds): count=64 first=15808 curr=14892 min=14470 max=17363 avg=15309.2 std=542
Memory (bytes): count=0
3 nodes observed

"""
PRINTED = """Setting intra_op_num_threads to 1
Disabling intra-op thread spinning between runs
Session creation time cost: 0.217932 s
First inference time cost: 196 ms
Total inference time cost: 0.49481 s
Total inference requests: 5
Average inference time cost total: 98.961997 ms
Total inference run time: 0.494854 s
Number of inferences per second: 10.104
Avg CPU usage: 11 %
Peak working set size: 271122432 bytes
Avg CPU usage:11
Peak working set size:271122432
Runs:5
Min Latency: 0.0958204 s
Max Latency: 0.101519 s
P50 Latency: 0.0995086 s
P90 Latency: 0.101519 s
P95 Latency: 0.101519 s
P99 Latency: 0.101519 s
P999 Latency: 0.101519 s
"""
