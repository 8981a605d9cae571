//! Parsers for values that appear in many flags.
//!
//! A program parses its arguments once, in `main`, and resolves them into its settings; nothing below reads flags or the environment.

use std::net::SocketAddr;
use std::time::Duration;

use jiff::SignedDuration;

/// Why a flag's value was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingError {
    /// The text is no duration.
    #[error("`{0}` is not a duration; write it like 15s, 500ms or 2m")]
    NotADuration(String),
    /// The duration is negative.
    #[error("`{0}` is negative; durations start at 0s")]
    NegativeDuration(String),
    /// The duration is zero where work would spin.
    #[error("`{0}` is zero; it must be longer than 0s")]
    ZeroDuration(String),
}

/// Reads a duration such as `15s`, `500ms`, `1m30s`; zero is allowed. For clap's `value_parser`.
///
/// # Errors
/// [`SettingError`] when the text is not a duration, or a negative one.
pub fn duration(text: &str) -> Result<Duration, SettingError> {
    let parsed: SignedDuration = text
        .trim()
        .parse()
        .map_err(|_| SettingError::NotADuration(text.to_owned()))?;
    Duration::try_from(parsed).map_err(|_| SettingError::NegativeDuration(text.to_owned()))
}

/// Reads a duration longer than zero. For clap's `value_parser`.
///
/// # Errors
/// [`SettingError`] when the text is not a duration, or one that is not positive.
pub fn positive_duration(text: &str) -> Result<Duration, SettingError> {
    let parsed = duration(text)?;
    if parsed.is_zero() {
        return Err(SettingError::ZeroDuration(text.to_owned()));
    }
    Ok(parsed)
}

/// The address that a local client should use to reach a listener bound to `bound`: an unspecified address becomes loopback.
#[must_use]
pub fn reachable(bound: SocketAddr) -> SocketAddr {
    if !bound.ip().is_unspecified() {
        return bound;
    }
    let loopback = match bound {
        SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(loopback, bound.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        assert_eq!(duration("15s"), Ok(Duration::from_secs(15)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("0s"), Ok(Duration::ZERO));
    }

    #[test]
    fn a_number_without_unit_is_refused_with_an_example() {
        let error = duration("15").expect_err("no unit");
        assert_eq!(
            error.to_string(),
            "`15` is not a duration; write it like 15s, 500ms or 2m"
        );
        assert_eq!(
            duration("-1s"),
            Err(SettingError::NegativeDuration("-1s".into()))
        );
        assert_eq!(
            positive_duration("0s"),
            Err(SettingError::ZeroDuration("0s".into()))
        );
    }

    #[test]
    fn an_unspecified_address_is_reached_by_loopback() {
        assert_eq!(
            reachable("0.0.0.0:80".parse().unwrap()),
            "127.0.0.1:80".parse().unwrap()
        );
        assert_eq!(
            reachable("[::]:80".parse().unwrap()),
            "[::1]:80".parse().unwrap()
        );
        assert_eq!(
            reachable("10.0.0.1:80".parse().unwrap()),
            "10.0.0.1:80".parse().unwrap()
        );
    }
}
