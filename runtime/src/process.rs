//! What this process uses of its machine, as every Prometheus client names it: `process_resident_memory_bytes` and its like.
//!
//! Read from `/proc/self` at each scrape. Where that cannot be read (another system), the metrics are absent, not zero.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// Ticks in a second, in which Linux counts processor time towards programs on every architecture.
const TICKS_PER_SECOND: f64 = 100.0;

#[derive(Debug)]
struct Process;

/// Adds the metrics to a registry without a prefix.
pub(crate) fn register(registry: &mut Registry) {
    registry.register_collector(Box::new(Process));
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut put =
            |name, help, metric: &dyn Encode| metric.encode_under(name, help, &mut encoder);
        if let Some(bytes) = resident_bytes() {
            let help = "Memory of this process that lies in RAM, in bytes";
            put(
                "process_resident_memory_bytes",
                help,
                &ConstGauge::new(bytes),
            )?;
        }
        if let Some(seconds) = processor_seconds() {
            let help = "Processor time that this process has used, in seconds";
            put("process_cpu_seconds", help, &ConstCounter::new(seconds))?;
        }
        if let Some(open) = open_files() {
            let help = "Files and connections that this process holds open";
            put("process_open_fds", help, &ConstGauge::new(open))?;
        }
        if let Some(most) = most_files() {
            let help = "Files and connections that this process may hold open";
            put("process_max_fds", help, &ConstGauge::new(most))?;
        }
        Ok(())
    }
}

/// A metric of any type, under a name.
trait Encode {
    fn encode_under(
        &self,
        name: &str,
        help: &str,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result;
}

impl<M: EncodeMetric> Encode for M {
    fn encode_under(
        &self,
        name: &str,
        help: &str,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> fmt::Result {
        self.encode(encoder.encode_descriptor(name, help, None, self.metric_type())?)
    }
}

fn resident_bytes() -> Option<f64> {
    resident(&fs::read_to_string("/proc/self/status").ok()?)
}

/// From `/proc/self/status`, which counts in KiB.
fn resident(status: &str) -> Option<f64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

fn processor_seconds() -> Option<f64> {
    processor(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// From `/proc/self/stat`: fields 14 and 15, in user and in kernel mode. Field 2 is a name that may hold blanks, in parentheses.
fn processor(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let user: f64 = fields.next()?.parse().ok()?;
    let kernel: f64 = fields.next()?.parse().ok()?;
    Some((user + kernel) / TICKS_PER_SECOND)
}

fn open_files() -> Option<i64> {
    // One of them is the folder that is being read.
    let open = fs::read_dir("/proc/self/fd")
        .ok()?
        .count()
        .saturating_sub(1);
    i64::try_from(open).ok()
}

fn most_files() -> Option<i64> {
    most(&fs::read_to_string("/proc/self/limits").ok()?)
}

/// The soft limit in `/proc/self/limits`; `None` also for `unlimited`.
fn most(limits: &str) -> Option<i64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_linux_are_read() {
        let status = "Name:\tcoppice adapter\nVmHWM:\t  200 kB\nVmRSS:\t  100 kB\n";
        assert_eq!(resident(status), Some(102_400.0));
        assert_eq!(resident("Name: x\n"), None);
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 4 0 100 1000 25";
        assert_eq!(processor(stat), Some(3.0));
        assert_eq!(processor(""), None);
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files  1024  4096  files\n";
        assert_eq!(most(limits), Some(1024));
        assert_eq!(most("Max open files  unlimited  unlimited  files\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_memory_time_and_files() {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for name in [
            "process_resident_memory_bytes",
            "process_cpu_seconds_total",
            "process_open_fds",
            "process_max_fds",
        ] {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("{name} ")))
                .unwrap_or_else(|| panic!("{name} is not in\n{text}"));
            let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(value > 0.0 || name == "process_cpu_seconds_total", "{line}");
        }
    }
}
