//! What an engine is told on its command line, and what follows from it.

use std::net::{IpAddr, Ipv4Addr};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Parser, ValueEnum};
use coppice_engine::{Detail, Profile, Settings};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal};

use crate::schedule::span::Span;

/// Arguments of one simulated engine: of `coppice-loadtest engine`, and of a pod that is one.
#[derive(Debug, Clone, clap::Args)]
pub struct EngineArgs {
    /// Name that the model is served under
    #[arg(
        long,
        env = "COPPICE_ENGINE_MODEL",
        default_value = "sim",
        value_name = "NAME"
    )]
    pub model: String,
    /// Built-in profile, or a file that holds one: how fast the engine is and how much it holds
    #[arg(
        long,
        env = "COPPICE_ENGINE_PROFILE",
        default_value = "llama-3.1-8b-fp8_h200_tp1",
        value_name = "NAME|FILE"
    )]
    pub profile: String,
    /// Part in serving a request
    #[arg(long, env = "COPPICE_ENGINE_ROLE", value_enum, default_value_t = Role::Aggregated)]
    pub role: Role,
    /// Address to listen on
    #[arg(long, env = "COPPICE_ENGINE_HOST", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_name = "ADDRESS")]
    pub host: IpAddr,
    /// Port to listen on; 0 takes a free one and logs it
    #[arg(long, env = "COPPICE_ENGINE_PORT", default_value_t = 8000)]
    pub port: u16,
    /// Name of this engine in answers and logs; without it the address
    #[arg(long, env = "COPPICE_ENGINE_NAME", value_name = "NAME")]
    pub name: Option<String>,

    /// Most sequences in a batch; without it the profile's
    #[arg(
        long,
        env = "COPPICE_ENGINE_MAX_NUM_SEQS",
        value_name = "COUNT",
        help_heading = "Limits"
    )]
    pub max_num_seqs: Option<NonZeroU32>,
    /// Most tokens in a step; without it the profile's
    #[arg(
        long,
        env = "COPPICE_ENGINE_MAX_NUM_BATCHED_TOKENS",
        value_name = "TOKENS",
        help_heading = "Limits"
    )]
    pub max_num_batched_tokens: Option<NonZeroU32>,
    /// Most tokens of prompt and answer together; without it 131072, or what the KV cache holds
    #[arg(
        long,
        env = "COPPICE_ENGINE_MAX_MODEL_LEN",
        value_name = "TOKENS",
        help_heading = "Limits"
    )]
    pub max_model_len: Option<NonZeroU32>,
    /// Tokens the KV cache holds; without it the profile's
    #[arg(
        long,
        env = "COPPICE_ENGINE_KV_CACHE_TOKENS",
        value_name = "TOKENS",
        help_heading = "Limits"
    )]
    pub kv_cache_tokens: Option<u64>,

    /// Answer length where a client sets no limit
    #[arg(
        long,
        env = "COPPICE_ENGINE_DEFAULT_MAX_TOKENS",
        default_value = "256",
        value_name = "TOKENS",
        help_heading = "Answers"
    )]
    pub default_max_tokens: NonZeroU32,
    /// Probability that the model ends its answer after a token, unless a client sends ignore_eos; 0: answers use their limit
    #[arg(
        long,
        env = "COPPICE_ENGINE_STOP_PROBABILITY",
        default_value_t = 0.0,
        value_name = "0..1",
        help_heading = "Answers"
    )]
    pub stop_probability: f64,

    /// Time from start to listening: loading weights, compiling
    #[arg(
        long,
        env = "COPPICE_ENGINE_START_UP",
        default_value = "0s",
        value_name = "DURATION",
        help_heading = "Life"
    )]
    pub start_up: Span,
    /// Spread of the start-up time: σ of its logarithm
    #[arg(
        long,
        env = "COPPICE_ENGINE_START_UP_SIGMA",
        default_value_t = 0.0,
        value_name = "SIGMA",
        help_heading = "Life"
    )]
    pub start_up_sigma: f64,
    /// How long requests may go on after the signal to end
    #[arg(
        long,
        env = "COPPICE_ENGINE_DRAIN",
        default_value = "30s",
        value_name = "DURATION",
        help_heading = "Life"
    )]
    pub drain: Span,
    /// Relative standard deviation of step times
    #[arg(
        long,
        env = "COPPICE_ENGINE_NOISE",
        default_value_t = 0.0,
        value_name = "SHARE",
        help_heading = "Life"
    )]
    pub noise: f64,
    /// Seed of everything drawn
    #[arg(
        long,
        env = "COPPICE_ENGINE_SEED",
        default_value_t = 0,
        help_heading = "Life"
    )]
    pub seed: u64,

    /// Bandwidth of KV transfers from prefill engines: NVLink 600, 400G InfiniBand 40, 100G Ethernet 10
    #[arg(
        long,
        env = "COPPICE_ENGINE_KV_TRANSFER_GIGABYTES_PER_SECOND",
        default_value_t = 40.0,
        value_name = "GB/s",
        help_heading = "P/D"
    )]
    pub kv_transfer_gigabytes_per_second: f64,
    /// Time before a KV transfer's first byte
    #[arg(
        long,
        env = "COPPICE_ENGINE_KV_TRANSFER_SET_UP",
        default_value = "1ms",
        value_name = "DURATION",
        help_heading = "P/D"
    )]
    pub kv_transfer_set_up: Span,
    /// How long a prefill engine keeps KV that nobody fetches
    #[arg(
        long,
        env = "COPPICE_ENGINE_KV_KEPT_FOR",
        default_value = "480s",
        value_name = "DURATION",
        help_heading = "P/D"
    )]
    pub kv_kept_for: Span,
}

/// Part of an engine in serving a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// The whole of it.
    Aggregated,
    /// The prompt.
    Prefill,
    /// The answer.
    Decode,
}

/// A resolved engine.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    /// Name the model is served under.
    pub model: String,
    /// Name of the engine; `None`: its address.
    pub name: Option<String>,
    /// Its part.
    pub role: Role,
    /// Coefficients.
    pub profile: Profile,
    /// Limits, with every token reported.
    pub settings: Settings,
    /// Answer length where a client sets no limit.
    pub default_max_tokens: NonZeroU32,
    /// Probability of ending after a token, `0.0..1.0`.
    pub stop_probability: f64,
    /// Drawn time from start to listening.
    pub start_up: Duration,
    /// How long requests may go on once the engine drains.
    pub drain: Duration,
    /// GPUs that hold the KV.
    pub tensor_parallel: NonZeroU16,
}

#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Alone {
    #[command(flatten)]
    args: EngineArgs,
}

impl EngineArgs {
    /// Reads arguments as a container has them, without program and sub-command.
    ///
    /// # Errors
    /// What is wrong with them, as the command line would say it.
    pub fn from_words<S: AsRef<str>>(words: &[S]) -> anyhow::Result<Self> {
        let words = words.iter().map(AsRef::as_ref);
        Ok(Alone::try_parse_from(words)?.args)
    }

    /// Resolves profile, limits and draws.
    ///
    /// # Errors
    /// The profile cannot be had, or a value is out of its range.
    pub fn resolve(&self) -> anyhow::Result<EngineConfig> {
        let share = |flag: &str, value: f64, below: f64| -> anyhow::Result<f64> {
            if !(0.0..below).contains(&value) {
                bail!("--{flag} is {value}, a number from 0 to below {below} is expected");
            }
            Ok(value)
        };
        let profile = load_profile(&self.profile)?;
        let mut settings = Settings::of(&profile);
        settings.detail = Detail::Tokens;
        if let Some(tokens) = self.kv_cache_tokens {
            if tokens < u64::from(coppice_engine::BLOCK_TOKENS) {
                bail!(
                    "--kv-cache-tokens is {tokens}, at least one block of {} is needed",
                    coppice_engine::BLOCK_TOKENS
                );
            }
            settings.kv_capacity_tokens = tokens;
            settings.max_model_len = settings
                .max_model_len
                .min(u32::try_from(tokens).unwrap_or(u32::MAX));
        }
        if let Some(limit) = self.max_num_seqs {
            settings.max_num_seqs = limit.get();
        }
        if let Some(limit) = self.max_num_batched_tokens {
            settings.max_num_batched_tokens = limit.get();
        }
        if let Some(limit) = self.max_model_len {
            settings.max_model_len = limit.get();
        }
        let bandwidth = self.kv_transfer_gigabytes_per_second;
        if !(bandwidth.is_finite() && bandwidth > 0.0) {
            bail!(
                "--kv-transfer-gigabytes-per-second is {bandwidth}, a number above 0 is expected"
            );
        }
        settings.transfer.bytes_per_second = bandwidth * 1e9;
        settings.transfer.set_up = self.kv_transfer_set_up.0;
        settings.kept_kv_expires_after = self.kv_kept_for.0;
        settings.noise = share("noise", self.noise, 1.0)?;
        settings.seed = self.seed;
        let sigma = share("start-up-sigma", self.start_up_sigma, 3.0)?;
        let gpus = u16::try_from(profile.gpus_per_replica)
            .ok()
            .and_then(NonZeroU16::new);
        Ok(EngineConfig {
            model: self.model.clone(),
            name: self.name.clone(),
            role: self.role,
            settings,
            default_max_tokens: self.default_max_tokens,
            stop_probability: share("stop-probability", self.stop_probability, 1.0)?,
            start_up: draw_start_up(self.start_up.0, sigma, self.seed),
            drain: self.drain.0,
            tensor_parallel: gpus.unwrap_or(NonZeroU16::MIN),
            profile,
        })
    }
}

/// A built-in profile by name; a file where the name looks like one.
fn load_profile(name: &str) -> anyhow::Result<Profile> {
    let looks_like_a_file = Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "json")
        || name.contains('/');
    if !looks_like_a_file {
        return Ok(Profile::named(name)?);
    }
    let text =
        std::fs::read_to_string(name).with_context(|| format!("reading engine profile {name}"))?;
    Profile::from_json(&text).with_context(|| format!("engine profile {name}"))
}

/// A start-up time with the given median.
fn draw_start_up(median: Duration, sigma: f64, seed: u64) -> Duration {
    let Ok(spread) = LogNormal::new(0.0, sigma) else {
        return median;
    };
    if sigma <= 0.0 {
        return median;
    }
    // A stream of its own, so that noise and answers do not shift with it.
    let mut random = ChaCha8Rng::seed_from_u64(seed ^ 0x5354_4152_5455_5021);
    median.mul_f64(spread.sample(&mut random))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(words: &[&str]) -> anyhow::Result<EngineConfig> {
        EngineArgs::from_words(words)?.resolve()
    }

    #[test]
    fn flags_override_the_profile() {
        let words = [
            "--model=qwen3",
            "--role",
            "prefill",
            "--max-num-seqs=7",
            "--kv-cache-tokens=3200",
            "--start-up=2s",
        ];
        let config = resolve(&words).unwrap();
        assert_eq!(
            (config.model.as_str(), config.role),
            ("qwen3", Role::Prefill)
        );
        assert_eq!(
            (config.settings.max_num_seqs, config.settings.max_model_len),
            (7, 3200)
        );
        assert_eq!(
            config.settings.max_num_batched_tokens,
            config.profile.max_num_batched_tokens
        );
        assert_eq!(config.start_up, Duration::from_secs(2));
    }

    #[test]
    fn wrong_values_are_named() {
        for (word, part) in [
            ("--noise=1.5", "--noise is 1.5"),
            ("--stop-probability=-1", "--stop-probability is -1"),
            ("--kv-transfer-gigabytes-per-second=0", "above 0"),
            ("--kv-cache-tokens=3", "at least one block"),
            ("--profile=h200", "no engine profile is named \"h200\""),
            ("--profile=/nowhere/x.json", "/nowhere/x.json"),
            ("--role=router", "router"),
            ("--tensor-parallel-size=8", "--tensor-parallel-size"),
        ] {
            let error = format!("{:#}", resolve(&[word]).unwrap_err());
            assert!(error.contains(part), "{word}: {error}");
        }
    }

    #[test]
    fn start_up_times_spread_round_their_median() {
        let median = Duration::from_secs(120);
        let mut drawn: Vec<_> = (0..999)
            .map(|seed| draw_start_up(median, 0.2, seed))
            .collect();
        drawn.sort();
        let middle = drawn[499].as_secs_f64();
        assert!((middle / 120.0 - 1.0).abs() < 0.05, "{middle}");
        assert!(drawn[0] < Duration::from_secs(90) && drawn[998] > Duration::from_secs(160));
        assert_eq!(draw_start_up(median, 0.0, 3), median);
    }
}
