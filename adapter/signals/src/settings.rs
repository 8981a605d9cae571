//! How often, how long, how much: the collector's settings and limits.

use std::time::Duration;

/// Settings of one collector.
///
/// [`Settings::default`] is what the guide recommends; [`Settings::validate`] is called by
/// [`Signals::new`](crate::Signals::new), which refuses settings that cannot work.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Time between two scrapes of one endpoint. Default 5 s; at least 100 ms.
    pub interval: Duration,
    /// Time for one whole scrape: connect, request, last byte. Default 5 s, because llama.cpp answers between model
    /// steps. May exceed the interval: there is never more than one scrape of an endpoint in flight.
    pub deadline: Duration,
    /// Longest look-back of rates and quantiles. Default 60 s; at least two intervals, at most 240.
    pub window: Duration,
    /// Age at which a sample stops counting. `None`: three intervals or 30 s, whichever is more.
    pub stale_after: Option<Duration>,
    /// Share of the live endpoints that must have a fresh value, `0.0..=1.0`. Below it an answer is
    /// [`Missing::QuorumNotMet`](crate::Missing::QuorumNotMet). Default 0.8.
    pub quorum: f64,
    /// Scrapes in flight, all endpoints together. Default 256.
    pub concurrent_scrapes: usize,
    /// What a target may cost at most.
    pub limits: Limits,
}

/// Limits on what comes from outside. Reaching one is an error that names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one body, inflated. Default 8 MiB; the largest real one seen is 0.33 MB.
    pub body_bytes: usize,
    /// Endpoints known to this process. Default 20,000. Further ones are not scraped, and count as missing.
    pub targets: usize,
    /// Series kept for one target. Default 10,000.
    pub series_per_target: usize,
    /// Samples read from one body, kept or not wanted alike. Default 500,000.
    pub samples_per_body: usize,
    /// Model names in one body. Default 64.
    pub models_per_target: usize,
    /// Bytes of a model name that are kept; a longer one is cut, and ends in a hash of the whole. Default 512.
    pub label_bytes: usize,
    /// Series names asked for by their own name, all callers together. Default 256; a name nobody asked for during
    /// [`Limits::raw_name_idle`] makes room.
    pub raw_names: usize,
    /// Time after which a raw series name that nobody asks for is dropped. Default 10 minutes.
    pub raw_name_idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 8 << 20,
            targets: 20_000,
            series_per_target: 10_000,
            samples_per_body: 500_000,
            models_per_target: 64,
            label_bytes: 512,
            raw_names: 256,
            raw_name_idle: Duration::from_secs(600),
        }
    }
}

impl Limits {
    /// The reader's limits.
    pub(crate) fn reader(&self) -> coppice_exposition::Limits {
        coppice_exposition::Limits {
            body_bytes: self.body_bytes,
            samples: self.samples_per_body as u64,
            ..coppice_exposition::Limits::default()
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            deadline: Duration::from_secs(5),
            window: Duration::from_secs(60),
            stale_after: None,
            quorum: 0.8,
            concurrent_scrapes: 256,
            limits: Limits::default(),
        }
    }
}

/// A setting that cannot work: which, its value, and what would.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting {field} is {value}: {need}")]
pub struct InvalidSetting {
    /// The field of [`Settings`].
    pub field: &'static str,
    /// Its value as text.
    pub value: String,
    /// What it has to be.
    pub need: &'static str,
}

impl Settings {
    /// Age at which a sample stops counting: [`Settings::stale_after`], else three intervals or 30 s, whichever is
    /// more.
    #[must_use]
    pub fn stale_after(&self) -> Duration {
        self.stale_after
            .unwrap_or_else(|| (self.interval * 3).max(Duration::from_secs(30)))
    }

    /// Checks that the settings can work together.
    ///
    /// # Errors
    /// The first setting that cannot.
    pub fn validate(&self) -> Result<(), InvalidSetting> {
        let check = |ok: bool, field, value: String, need| {
            if ok {
                Ok(())
            } else {
                Err(InvalidSetting { field, value, need })
            }
        };
        check(
            self.interval >= Duration::from_millis(100),
            "interval",
            format!("{:?}", self.interval),
            "use at least 100ms",
        )?;
        check(
            self.deadline >= Duration::from_millis(10),
            "deadline",
            format!("{:?}", self.deadline),
            "use at least 10ms",
        )?;
        check(
            self.window >= self.interval * 2 && self.window <= self.interval * 240,
            "window",
            format!("{:?}", self.window),
            "use between 2 and 240 intervals",
        )?;
        check(
            self.stale_after() >= self.interval,
            "stale_after",
            format!("{:?}", self.stale_after()),
            "use at least one interval",
        )?;
        check(
            (0.0..=1.0).contains(&self.quorum),
            "quorum",
            self.quorum.to_string(),
            "use a share between 0 and 1",
        )?;
        check(
            self.concurrent_scrapes > 0,
            "concurrent_scrapes",
            self.concurrent_scrapes.to_string(),
            "use at least 1",
        )?;
        check(
            self.limits.body_bytes >= 1024,
            "limits.body_bytes",
            self.limits.body_bytes.to_string(),
            "use at least 1024",
        )?;
        check(
            (1..=128).contains(&self.limits.models_per_target),
            "limits.models_per_target",
            self.limits.models_per_target.to_string(),
            "use between 1 and 128",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid_and_stale_after_follows_the_interval() {
        let mut settings = Settings::default();
        assert_eq!(settings.validate(), Ok(()));
        assert_eq!(settings.stale_after(), Duration::from_secs(30));
        settings.interval = Duration::from_secs(15);
        assert_eq!(settings.stale_after(), Duration::from_secs(45));
        settings.stale_after = Some(Duration::from_secs(20));
        assert_eq!(settings.stale_after(), Duration::from_secs(20));
    }

    #[test]
    fn an_impossible_setting_is_named() {
        let settings = Settings {
            quorum: 1.5,
            ..Settings::default()
        };
        assert_eq!(
            settings.validate().unwrap_err().to_string(),
            "setting quorum is 1.5: use a share between 0 and 1"
        );
        let settings = Settings {
            window: Duration::from_secs(6),
            ..Settings::default()
        };
        assert_eq!(settings.validate().unwrap_err().field, "window");
    }
}
