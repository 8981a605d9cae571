//! Workers: take a unit, make a pass, give it back.

use std::sync::Arc;

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::{Context, replica, set};
use crate::index::key::Unit;
use crate::queue::Outcome;

/// Works until `stop` is cancelled; passes that are running then end first.
pub(crate) async fn run(cx: Context, workers: usize, stop: CancellationToken) {
    let cx = Arc::new(cx);
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let cx = Arc::clone(&cx);
        let stop = stop.clone();
        running.spawn(async move {
            loop {
                let unit = tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    unit = cx.queue.next() => unit,
                };
                work(&cx, &unit).await;
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        if let Err(error) = ended {
            error!(%error, "a worker ended");
        }
    }
}

async fn work(cx: &Context, unit: &Unit) {
    let start = tokio::time::Instant::now();
    let pass = async {
        match unit {
            Unit::Set(set) => set::pass(cx, set).await,
            Unit::Replica(set, replica) => replica::pass(cx, set, *replica).await,
        }
    };
    // A pass that panics is a bug in one object's way; the others must go on.
    let outcome = std::panic::AssertUnwindSafe(pass)
        .catch_unwind()
        .await
        .unwrap_or_else(|_| {
            error!(?unit, "a pass panicked");
            cx.metrics.failed(unit.controller(), "Panic");
            Outcome::Failed
        });
    cx.metrics.reconciled(unit.controller(), start.elapsed());
    cx.queue.done(unit, outcome);
}
