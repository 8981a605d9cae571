//! Reading a body of vLLM 0.33, 63 kB, 629 lines: MB/s of one core.
//!
//! `needed_names` is what a collector does with it. Run with `cargo bench -p coppice-exposition`.

use coppice_exposition::{Consumer, Limits, NameTable, Sample, collect, read};
use divan::Bencher;
use divan::counter::BytesCount;

const VLLM: &[u8] = include_bytes!("../../signals/testdata/vllm-0.33.0-saturated-t1.txt");
const FOUR_ENGINES: &[u8] =
    include_bytes!("../../signals/testdata/vllm-0.33.0-dp4-multiproc-t1.txt");
const DYNAMO: &[u8] =
    include_bytes!("../../signals/testdata/dynamo-frontend-1.6.1-agg-busy-t1.txt");

const NEEDED: [&str; 20] = [
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:num_requests_waiting_by_reason",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:prompt_tokens_total",
    "vllm:prompt_tokens_by_source_total",
    "vllm:generation_tokens_total",
    "vllm:num_preemptions_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:request_success_total",
    "vllm:time_to_first_token_seconds_bucket",
    "vllm:time_to_first_token_seconds_sum",
    "vllm:time_to_first_token_seconds_count",
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:inter_token_latency_seconds_sum",
    "vllm:inter_token_latency_seconds_count",
    "vllm:request_prompt_tokens_sum",
    "vllm:request_prompt_tokens_count",
];

/// Adds up values and fingerprints, as a collector has to.
struct Sum {
    names: Option<NameTable<()>>,
    value: f64,
    series: u64,
}

impl<'t> Consumer<'t> for Sum {
    type Key = ();
    fn select(&mut self, name: &[u8]) -> Option<()> {
        self.names
            .as_ref()
            .is_none_or(|names| names.get(name).is_some())
            .then_some(())
    }
    fn sample(&mut self, (): (), sample: &Sample<'t, '_>) {
        self.value += sample.value;
        self.series ^= sample.fingerprint();
    }
}

fn run(bencher: Bencher<'_, '_>, body: &[u8], names: Option<&[&str]>) {
    let mut sum = Sum {
        names: names.map(|names| NameTable::new(names.iter().map(|name| (name, ())))),
        value: 0.0,
        series: 0,
    };
    bencher
        .counter(BytesCount::of_slice(body))
        .bench_local(|| read(body, &Limits::default(), &mut sum));
}

#[divan::bench]
fn needed_names(bencher: Bencher<'_, '_>) {
    run(bencher, VLLM, Some(&NEEDED));
}

#[divan::bench]
fn needed_names_of_four_engines(bencher: Bencher<'_, '_>) {
    run(bencher, FOUR_ENGINES, Some(&NEEDED));
}

#[divan::bench]
fn no_names(bencher: Bencher<'_, '_>) {
    run(bencher, VLLM, Some(&[]));
}

#[divan::bench]
fn every_sample(bencher: Bencher<'_, '_>) {
    run(bencher, VLLM, None);
}

#[divan::bench]
fn every_sample_of_a_frontend(bencher: Bencher<'_, '_>) {
    run(bencher, DYNAMO, None);
}

#[divan::bench]
fn every_sample_collected(bencher: Bencher<'_, '_>) {
    bencher
        .counter(BytesCount::of_slice(VLLM))
        .bench_local(|| collect(VLLM, &Limits::default()));
}

/// The usual reader, which finds 32 of these 445 samples.
#[divan::bench]
fn prometheus_parse(bencher: Bencher<'_, '_>) {
    let text = std::str::from_utf8(VLLM).expect("the fixture is UTF-8");
    bencher.counter(BytesCount::of_slice(VLLM)).bench_local(|| {
        prometheus_parse::Scrape::parse(text.lines().map(|line| Ok(line.to_owned())))
    });
}

fn main() {
    divan::main();
}
