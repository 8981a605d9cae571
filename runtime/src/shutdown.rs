//! Ending well: the first signal drains, the second aborts.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The process's wish to end, in two steps.
///
/// 1. *drain*: take no new work, finish what was begun, release the lease;
/// 2. *abort*: stop at once.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    drain: CancellationToken,
    abort: CancellationToken,
}

/// The work was cut off before it had finished.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Aborted {
    /// A second signal came.
    #[error("aborted by a second signal")]
    Signal,
    /// Draining took longer than allowed.
    #[error("draining took longer than {grace:?}")]
    Slow {
        /// The time that was allowed.
        grace: Duration,
    },
}

impl Shutdown {
    /// Listens for SIGTERM and SIGINT from now on.
    ///
    /// # Errors
    /// When the system refuses the signal handlers.
    pub fn install() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let shutdown = Self::default();
        let told = shutdown.clone();
        tokio::spawn(async move {
            for wish in [Self::drain as fn(&Self), Self::abort] {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                wish(&told);
            }
        });
        Ok(shutdown)
    }

    /// Begins draining, as the first signal does. Tests and programs that end by themselves call it.
    pub fn drain(&self) {
        if !self.drain.is_cancelled() {
            info!("draining");
        }
        self.drain.cancel();
    }

    /// Aborts, as the second signal does.
    pub fn abort(&self) {
        warn!("aborting");
        self.drain.cancel();
        self.abort.cancel();
    }

    /// Cancelled as soon as draining begins; give it to everything that runs long.
    #[must_use]
    pub fn draining(&self) -> CancellationToken {
        self.drain.clone()
    }

    /// Runs the program's work to its end, or to the abort: the work is dropped when a second signal comes, or when it has not
    /// ended `grace` after draining began.
    ///
    /// # Errors
    /// [`Aborted`] when the work was dropped.
    pub async fn guard<T>(
        &self,
        grace: Duration,
        work: impl Future<Output = T>,
    ) -> Result<T, Aborted> {
        let out_of_time = async {
            self.drain.cancelled().await;
            tokio::time::sleep(grace).await;
        };
        tokio::select! {
            biased;
            () = self.abort.cancelled() => Err(Aborted::Signal),
            done = work => Ok(done),
            () = out_of_time => Err(Aborted::Slow { grace }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn work_may_finish_after_draining_begins() {
        let shutdown = Shutdown::default();
        let draining = shutdown.draining();
        shutdown.drain();
        let work = async {
            draining.cancelled().await;
            tokio::time::sleep(Duration::from_secs(5)).await;
            "done"
        };
        assert_eq!(
            shutdown.guard(Duration::from_secs(10), work).await,
            Ok("done")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_wish_and_the_end_of_grace_cut_work_off() {
        let grace = Duration::from_secs(10);
        let slow = Shutdown::default();
        slow.drain();
        assert_eq!(
            slow.guard(grace, std::future::pending::<()>()).await,
            Err(Aborted::Slow { grace })
        );
        let aborted = Shutdown::default();
        aborted.drain();
        aborted.abort();
        assert_eq!(
            aborted.guard(grace, std::future::pending::<()>()).await,
            Err(Aborted::Signal)
        );
    }
}
