//! `/metrics` as vLLM 0.33 writes it: names, types, labels, bounds, order and number format.
//!
//! Left out: `python_*` and most `process_*` families, HTTP sizes and durations, and what belongs to features the simulation
//! lacks and which vLLM shows only with them. `process_start_time_seconds` is the engine's, not the process's.

use std::sync::atomic::Ordering;

use coppice_engine::{BLOCK_TOKENS, Histogram, Load, Settings, Statistics};

use super::arguments::Role;
use super::routes::StatusCounts;
use crate::exposition::{Buckets, Numbers, Text, escape};
use crate::openai::Endpoint;

/// What there is to tell at one instant.
pub(crate) struct Snapshot<'a> {
    pub(crate) model: &'a str,
    pub(crate) role: Role,
    pub(crate) load: Load,
    pub(crate) statistics: &'a Statistics,
    pub(crate) settings: &'a Settings,
    pub(crate) context_limit: u32,
    /// Seconds since 1970.
    pub(crate) started: f64,
    pub(crate) failed_notifications: u64,
    /// By [`Endpoint`].
    pub(crate) answered: &'a [StatusCounts; 2],
}

/// Bounds of the histogram of `n`, which is always 1 here.
const ANSWERS_PER_REQUEST: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];
/// Bounds of the time to post a transfer, which costs nothing here.
const POST_TIMES: [f64; 13] = [
    0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 5.0,
];
/// Bounds of the number of descriptors of a transfer.
const DESCRIPTORS: [f64; 14] = [
    10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 200.0, 400.0, 1000.0, 2000.0, 4000.0, 10000.0, 20000.0,
    50000.0,
];

/// The body.
pub(crate) fn render(snapshot: &Snapshot<'_>) -> String {
    let mut page = Page {
        text: Text::new(Numbers::Python),
        engine: "engine=\"0\"",
        model: format!("model_name=\"{}\"", escape(snapshot.model)),
        created: snapshot.started,
    };
    page.text.family(
        "process_start_time_seconds",
        "gauge",
        "When the engine started, in seconds since 1970.",
    );
    page.text
        .sample("process_start_time_seconds", "", snapshot.started);
    if snapshot.role.transfers_kv() {
        page.transfers(snapshot);
    }
    page.unused_estimates();
    page.load(snapshot);
    page.tokens(snapshot.statistics);
    page.finished(snapshot.statistics);
    page.lengths(snapshot.statistics);
    page.times(snapshot.statistics);
    page.cache_configuration(snapshot);
    page.answers(snapshot.answered);
    page.text.finish()
}

struct Page<'a> {
    text: Text,
    engine: &'a str,
    model: String,
    created: f64,
}

/// Where a label comes among `engine` and `model_name`: labels are sorted by name.
enum Extra<'a> {
    None,
    Before(&'a str, &'a str),
    After(&'a str, &'a str),
}

impl Page<'_> {
    fn labels(&self, extra: &Extra<'_>) -> String {
        let Self { engine, model, .. } = self;
        match extra {
            Extra::None => format!("{engine},{model}"),
            Extra::Before(name, value) => format!("{engine},{name}=\"{value}\",{model}"),
            Extra::After(name, value) => format!("{engine},{model},{name}=\"{value}\""),
        }
    }

    fn gauge(&mut self, name: &str, help: &str, samples: &[(Extra<'_>, f64)]) {
        self.text.family(name, "gauge", help);
        for (extra, value) in samples {
            let labels = self.labels(extra);
            self.text.sample(name, &labels, *value);
        }
    }

    /// A counter: `name` is without `_total`.
    fn counter(&mut self, name: &str, help: &str, samples: &[(Extra<'_>, u64)]) {
        let labelled: Vec<_> = samples
            .iter()
            .map(|(extra, value)| (self.labels(extra), *value))
            .collect();
        self.counter_with(name, help, &labelled);
    }

    fn counter_with(&mut self, name: &str, help: &str, samples: &[(String, u64)]) {
        let total = format!("{name}_total");
        self.text.family(&total, "counter", help);
        for (labels, value) in samples {
            self.text.sample(&total, labels, *value as f64);
        }
        let created = format!("{name}_created");
        self.text.family(&created, "gauge", help);
        for (labels, _) in samples {
            self.text.sample(&created, labels, self.created);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        let cumulative: Vec<u64> = histogram.cumulative().collect();
        let buckets = Buckets {
            bounds: histogram.bounds(),
            cumulative: &cumulative,
            sum: histogram.sum(),
        };
        self.buckets(name, help, buckets);
    }

    /// A histogram of `count` observations that are all the same.
    fn constant_histogram(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64],
        value: f64,
        count: u64,
    ) {
        let mut histogram = Histogram::new(bounds);
        histogram.observe_times(value, count);
        self.histogram(name, help, &histogram);
    }

    fn buckets(&mut self, name: &str, help: &str, buckets: Buckets<'_>) {
        self.text.family(name, "histogram", help);
        self.text.histogram(name, self.engine, &self.model, buckets);
        let created = format!("{name}_created");
        self.text.family(&created, "gauge", help);
        let labels = self.labels(&Extra::None);
        self.text.sample(&created, &labels, self.created);
    }

    fn transfers(&mut self, snapshot: &Snapshot<'_>) {
        let statistics = snapshot.statistics;
        let fetched = statistics.transfer_time.count();
        self.histogram(
            "vllm:nixl_xfer_time_seconds",
            "Duration of KV transfers.",
            &statistics.transfer_time,
        );
        self.constant_histogram(
            "vllm:nixl_post_time_seconds",
            "Time to post KV transfers.",
            &POST_TIMES,
            0.0,
            fetched,
        );
        self.histogram(
            "vllm:nixl_bytes_transferred",
            "Bytes of KV transfers.",
            &statistics.transfer_bytes,
        );
        self.constant_histogram(
            "vllm:nixl_num_descriptors",
            "Descriptors of KV transfers.",
            &DESCRIPTORS,
            1.0,
            fetched,
        );
        let none = || Extra::None;
        self.counter(
            "vllm:nixl_num_failed_transfers",
            "KV transfers that failed.",
            &[(none(), 0)],
        );
        let failed = snapshot.failed_notifications;
        self.counter(
            "vllm:nixl_num_failed_notifications",
            "Ends of transfers not told to the other side.",
            &[(none(), failed)],
        );
        let expired = statistics.kv_expired;
        self.counter(
            "vllm:nixl_num_kv_expired_reqs",
            "Requests whose KV was not fetched in time.",
            &[(none(), expired)],
        );
        self.counter(
            "vllm:nixl_num_notifications_after_expiry",
            "Transfers that ended after the KV expired.",
            &[(none(), 0)],
        );
    }

    /// Families that vLLM always shows and that stay 0 without its flag.
    fn unused_estimates(&mut self) {
        for (name, help) in [
            (
                "vllm:estimated_flops_per_gpu",
                "Estimated floating point operations of a GPU.",
            ),
            (
                "vllm:estimated_read_bytes_per_gpu",
                "Estimated bytes a GPU has read.",
            ),
            (
                "vllm:estimated_write_bytes_per_gpu",
                "Estimated bytes a GPU has written.",
            ),
        ] {
            self.counter(name, help, &[(Extra::None, 0)]);
        }
    }

    fn load(&mut self, snapshot: &Snapshot<'_>) {
        let load = &snapshot.load;
        let deferred = load.fetching + load.fetched;
        self.gauge(
            "vllm:num_requests_running",
            "Requests in the batch.",
            &[(Extra::None, load.running.into())],
        );
        self.gauge(
            "vllm:num_requests_waiting",
            "Requests that wait.",
            &[(Extra::None, load.waiting().into())],
        );
        self.gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait for room (capacity), or for KV on its way (deferred).",
            &[
                (
                    Extra::After("reason", "capacity"),
                    load.waiting_for_capacity.into(),
                ),
                (Extra::After("reason", "deferred"), deferred.into()),
            ],
        );
        if snapshot.role == Role::Decode {
            self.gauge(
                "vllm:num_requests_kv_fetch_by_stage",
                "Requests whose KV comes from another engine, by how far it is.",
                &[
                    (
                        Extra::After("stage", "waiting_to_start"),
                        load.waiting_to_fetch.into(),
                    ),
                    (Extra::After("stage", "in_progress"), load.fetching.into()),
                    (
                        Extra::After("stage", "completed_waiting"),
                        load.fetched.into(),
                    ),
                ],
            );
        }
        self.gauge(
            "vllm:engine_sleep_state",
            "Whether the engine is awake, or how deep it sleeps.",
            &[
                (Extra::After("sleep_state", "awake"), 1.0),
                (Extra::After("sleep_state", "weights_offloaded"), 0.0),
                (Extra::After("sleep_state", "discard_all"), 0.0),
            ],
        );
        self.gauge(
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache in use, 0 to 1.",
            &[(Extra::None, load.kv_usage())],
        );
    }

    fn tokens(&mut self, statistics: &Statistics) {
        let none = || Extra::None;
        let source = |value| Extra::After("source", value);
        let mut one =
            |name: &str, help: &str, value: u64| self.counter(name, help, &[(none(), value)]);
        one(
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up in the prefix cache.",
            statistics.prefix_cache_queries,
        );
        one(
            "vllm:prefix_cache_hits",
            "Prompt tokens found in the prefix cache.",
            statistics.prefix_cache_hits,
        );
        one(
            "vllm:external_prefix_cache_queries",
            "Prompt tokens asked of other engines.",
            statistics.external_cache_queries,
        );
        one(
            "vllm:external_prefix_cache_hits",
            "Prompt tokens whose KV came from other engines.",
            statistics.external_cache_hits,
        );
        one(
            "vllm:mm_cache_queries",
            "Items looked up in the multimodal cache.",
            0,
        );
        one(
            "vllm:mm_cache_hits",
            "Items found in the multimodal cache.",
            0,
        );
        one(
            "vllm:num_preemptions",
            "Sequences thrown out of the batch for want of KV blocks.",
            statistics.preemptions,
        );
        one(
            "vllm:prompt_tokens",
            "Prompt tokens, cached and transferred ones included.",
            statistics.prompt_tokens,
        );
        self.counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            &[
                (source("local_compute"), statistics.prompt_tokens_computed),
                (source("local_cache_hit"), statistics.prompt_tokens_cached),
                (
                    source("external_kv_transfer"),
                    statistics.prompt_tokens_fetched,
                ),
            ],
        );
        let not_computed = statistics.prompt_tokens_cached + statistics.prompt_tokens_fetched;
        self.counter(
            "vllm:prompt_tokens_cached",
            "Prompt tokens that were not computed.",
            &[(none(), not_computed)],
        );
        self.counter(
            "vllm:prompt_tokens_cached_by_source",
            "Prompt tokens that were not computed, by where their KV lay.",
            &[
                (source("device"), statistics.prompt_tokens_cached),
                (source("host"), 0),
                (source("p2p"), statistics.prompt_tokens_fetched),
                (source("disk"), 0),
                (source("external_unspecified"), 0),
            ],
        );
        self.counter(
            "vllm:generation_tokens",
            "Tokens made.",
            &[(none(), statistics.generation_tokens)],
        );
    }

    fn finished(&mut self, statistics: &Statistics) {
        let finished = &statistics.finished;
        let reason = |value| Extra::Before("finished_reason", value);
        self.counter(
            "vllm:request_success",
            "Requests that ended, by reason.",
            &[
                (reason("stop"), finished.stop),
                (reason("length"), finished.length),
                (reason("abort"), finished.abort),
                (reason("error"), 0),
                (reason("repetition"), 0),
            ],
        );
        let refused = |reason: &str| (format!("{},reason=\"{reason}\"", self.model), 0);
        let refusals = [
            refused("max_num_queued_reqs"),
            refused("max_num_queued_tokens"),
        ];
        self.counter_with(
            "vllm:admission_rejections",
            "Requests refused by a limit of the queue.",
            &refusals,
        );
    }

    fn lengths(&mut self, statistics: &Statistics) {
        let requests = statistics.prompt_length.count();
        self.histogram(
            "vllm:request_prompt_tokens",
            "Prompt tokens of a request.",
            &statistics.prompt_length,
        );
        self.histogram(
            "vllm:request_generation_tokens",
            "Tokens made for a request.",
            &statistics.generation_length,
        );
        self.histogram(
            "vllm:iteration_tokens_total",
            "Tokens of a step.",
            &statistics.step_tokens,
        );
        self.histogram(
            "vllm:request_max_num_generation_tokens",
            "Most tokens made for one answer of a request.",
            &statistics.generation_length,
        );
        self.constant_histogram(
            "vllm:request_params_n",
            "Answers asked for by a request.",
            &ANSWERS_PER_REQUEST,
            1.0,
            requests,
        );
        self.histogram(
            "vllm:request_params_max_tokens",
            "Limit set by a request.",
            &statistics.max_tokens,
        );
    }

    fn times(&mut self, statistics: &Statistics) {
        for (name, help, histogram) in [
            (
                "vllm:time_to_first_token_seconds",
                "Time to the first token.",
                &statistics.time_to_first_token,
            ),
            (
                "vllm:inter_token_latency_seconds",
                "Time between tokens.",
                &statistics.inter_token_latency,
            ),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time between a request's tokens.",
                &statistics.time_per_output_token,
            ),
            (
                "vllm:e2e_request_latency_seconds",
                "Time from arrival to end.",
                &statistics.end_to_end,
            ),
            (
                "vllm:request_queue_time_seconds",
                "Time spent waiting.",
                &statistics.queue_time,
            ),
            (
                "vllm:request_inference_time_seconds",
                "Time spent running.",
                &statistics.inference_time,
            ),
            (
                "vllm:request_prefill_time_seconds",
                "Time from admission to the first token.",
                &statistics.prefill_time,
            ),
            (
                "vllm:request_decode_time_seconds",
                "Time from the first to the last token.",
                &statistics.decode_time,
            ),
            (
                "vllm:request_num_preemptions",
                "How often a request was preempted.",
                &statistics.preemptions_of_request,
            ),
            (
                "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens computed for a request.",
                &statistics.computed_length,
            ),
        ] {
            self.histogram(name, help, histogram);
        }
    }

    fn cache_configuration(&mut self, snapshot: &Snapshot<'_>) {
        let blocks = snapshot.load.total_blocks;
        let tokens = blocks * u64::from(BLOCK_TOKENS);
        let concurrency = tokens as f64 / f64::from(snapshot.context_limit.max(1));
        let concurrency = format!("{concurrency:.2}");
        let concurrency = concurrency.trim_end_matches('0').trim_end_matches('.');
        let labels = CACHE_LABELS
            .replace("{concurrency}", concurrency)
            .replace("{tokens}", &tokens.to_string())
            .replace("{blocks}", &blocks.to_string())
            .replace("{block}", &BLOCK_TOKENS.to_string());
        debug_assert_eq!(
            snapshot.settings.kv_capacity_tokens / u64::from(BLOCK_TOKENS),
            blocks
        );
        self.text.family(
            "vllm:cache_config_info",
            "gauge",
            "How the KV cache is set up.",
        );
        self.text.sample("vllm:cache_config_info", &labels, 1.0);
    }

    fn answers(&mut self, answered: &[StatusCounts; 2]) {
        self.text.family(
            "http_requests_total",
            "counter",
            "HTTP requests by path, method and status.",
        );
        for endpoint in Endpoint::ALL {
            let counts = &answered[endpoint as usize];
            for (status, count) in [
                ("2xx", &counts.success),
                ("4xx", &counts.client_error),
                ("5xx", &counts.server_error),
            ] {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = format!(
                        "handler=\"{}\",method=\"POST\",status=\"{status}\"",
                        endpoint.path()
                    );
                    self.text
                        .sample("http_requests_total", &labels, count as f64);
                }
            }
        }
    }
}

/// vLLM's labels; a scraper reads the blocks, their size, the tokens and the concurrency.
const CACHE_LABELS: &str = r#"_block_size_resolved="True",block_size="{block}",cache_dtype="auto",cache_hit_alignment_tokens="{block}",effective_attention_block_size="{block}",enable_mamba_shared_prefix_checkpoint="False",enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",hash_block_size="{block}",is_attention_free="False",kv_cache_dtype_skip_layers="[]",kv_cache_layout="LBNHC",kv_cache_max_concurrency="{concurrency}",kv_cache_memory_bytes="None",kv_cache_size_tokens="{tokens}",kv_offloading_backend="native",kv_offloading_size="None",kv_sharing_fast_prefill="False",mamba_block_size="None",mamba_cache_dtype="auto",mamba_cache_mode="none",mamba_page_size_padded="None",mamba_ssm_cache_dtype="auto",num_cpu_blocks="None",num_gpu_blocks="{blocks}",num_gpu_blocks_override="None",prefix_cache_retention_interval="0",prefix_caching_hash_algo="sha256",prefix_match_unit="None",replayssm_buffer_len="16",simple_cpu_offload_num_blocks="None",skip_page_size_padded="None",sliding_window="None",swa_bounded_replay="False",use_kda_recoverssm="False",use_replayssm="False",user_specified_block_size="False""#;
