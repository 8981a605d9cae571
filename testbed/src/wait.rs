//! Waiting for a state of the world, with a deadline and a message that says what was seen last.

use std::fmt::{self, Display};
use std::time::Duration;

use tokio::time::Instant;

/// The first look is at once; then the pause grows to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// A state that did not come, or did not stay, in time.
#[derive(Debug)]
pub struct WaitError {
    /// What was waited for.
    pub what: String,
    /// How long.
    pub limit: Duration,
    /// The last state that was seen instead.
    pub last: String,
    stayed: bool,
}

impl std::error::Error for WaitError {}

impl Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            limit,
            last,
            stayed,
        } = self;
        if *stayed {
            write!(f, "{what} did not hold for {limit:?}; seen: {last}")
        } else {
            write!(f, "{what} did not come within {limit:?}; last seen: {last}")
        }
    }
}

/// Looks again and again until `look` returns `Ok`, at most for `limit`; every `Err` is the state seen instead.
///
/// A look that hangs is cut off at the deadline. Any error type that prints will do, `anyhow::Error` most handily.
///
/// # Errors
///
/// `limit` passed; the message carries the last state seen.
pub async fn until<T, E, F, Fut>(limit: Duration, what: &str, mut look: F) -> Result<T, WaitError>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    E: Display,
{
    let deadline = Instant::now() + limit;
    let mut pause = Duration::from_millis(10);
    let mut last = "no answer to the first look".to_owned();
    loop {
        match tokio::time::timeout_at(deadline, look()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(seen)) => last = format!("{seen:#}"),
            Err(_) => {}
        }
        if Instant::now() + pause >= deadline {
            return Err(WaitError {
                what: what.to_owned(),
                limit,
                last,
                stayed: false,
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Looks again and again for all of `period`: a state that must not end, such as a gang that must stay pending.
///
/// # Errors
///
/// The first `Err` of `look`, with what it saw.
pub async fn holds<E, F, Fut>(period: Duration, what: &str, mut look: F) -> Result<(), WaitError>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<(), E>>,
    E: Display,
{
    let end = Instant::now() + period;
    while Instant::now() < end {
        if let Err(seen) = look().await {
            return Err(WaitError {
                what: what.to_owned(),
                limit: period,
                last: format!("{seen:#}"),
                stayed: true,
            });
        }
        tokio::time::sleep(LONGEST_PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[tokio::test(start_paused = true)]
    async fn the_message_carries_the_last_state_seen() {
        let looks = Cell::new(0);
        let error = until::<(), _, _, _>(Duration::from_secs(3), "four pods", || {
            looks.set(looks.get() + 1);
            let seen = looks.get().min(3);
            async move { Err(format!("{seen} pods")) }
        })
        .await
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "four pods did not come within 3s; last seen: 3 pods"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_cut_off() {
        let error =
            until::<(), String, _, _>(Duration::from_secs(3), "an answer", std::future::pending)
                .await
                .unwrap_err();
        assert!(error.to_string().contains("no answer"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_that_ends_too_early_is_an_error() {
        let begin = Instant::now();
        let look = || async move {
            if begin.elapsed() < Duration::from_secs(2) {
                Ok(())
            } else {
                Err("bound")
            }
        };
        let error = holds(Duration::from_secs(5), "the gang pending", look)
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("the gang pending did not hold"),
            "{error}"
        );
        holds(Duration::from_secs(1), "time", || async {
            Ok::<_, String>(())
        })
        .await
        .unwrap();
    }
}
