//! What the driver's own machine can tell: processors, descriptors, and whether a thread had to wait for a processor.

use std::time::Duration;

use nix::sys::resource::{Resource, UsageWho, getrlimit, getrusage, setrlimit};
use serde::{Deserialize, Serialize};

/// Where the run was driven from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Processors this process may use.
    pub cpus: usize,
    /// Kernel.
    pub kernel: String,
    /// Descriptors this process may open.
    pub descriptors: u64,
}

impl Host {
    /// Reads them.
    #[must_use]
    pub fn read() -> Self {
        Self {
            cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(
                |_| std::env::consts::OS.to_owned(),
                |text| text.trim().to_owned(),
            ),
            descriptors: getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft),
        }
    }
}

/// Raises the limit of open descriptors as far as this process may. Failing leaves it as it is; running out is counted.
pub fn raise_descriptor_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        let _refused = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Processor time of the whole process so far, user and system.
#[must_use]
pub fn process_cpu() -> Duration {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else {
        return Duration::ZERO;
    };
    let of = |value: nix::sys::time::TimeVal| {
        let micros = i128::from(value.tv_sec()) * 1_000_000 + i128::from(value.tv_usec());
        Duration::from_micros(u64::try_from(micros).unwrap_or(0))
    };
    of(usage.user_time()) + of(usage.system_time())
}

/// Processor time of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ThreadCpu {
    /// Time it ran.
    pub ran: Duration,
    /// Time it could have run but had to wait for a processor.
    pub waited: Duration,
}

impl ThreadCpu {
    /// The calling thread's; none where the system does not keep it (`/proc/thread-self/schedstat`).
    #[must_use]
    pub fn read() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        let mut numbers = text
            .split_ascii_whitespace()
            .map(|number| number.parse::<u64>().ok());
        Some(Self {
            ran: Duration::from_nanos(numbers.next()??),
            waited: Duration::from_nanos(numbers.next()??),
        })
    }

    /// The time since an earlier reading.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(before.ran),
            waited: self.waited.saturating_sub(before.waited),
        }
    }
}

/// A duration in whole µs, as histograms hold it.
#[must_use]
pub fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
