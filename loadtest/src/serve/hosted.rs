//! Many engines in one process, started and stopped by JSON lines.
//!
//! In, one object a line:
//!
//! | line | does |
//! |---|---|
//! | `{"op":"start","id":…,"address":"127.64.0.5:8000","args":["--model=m",…]}` | starts an engine; `args` as `coppice-loadtest engine` takes them |
//! | `{"op":"drain","id":…,"graceSeconds":30}` | no new requests; it ends when its last one does |
//! | `{"op":"stop","id":…}` | ends it at once, with its connections |
//! | `{"op":"freezeMetrics","id":…,"frozen":true}` | its `/metrics` stands still; id null: that of every engine |
//!
//! Out: `{"event":"listening","id":…}` when it serves, `{"event":"drained","id":…}` when it has ended after a drain,
//! `{"event":"failed","id":…,"error":…}` for anything that could not be done; without id when the line
//! named none.
//! The end of input ends all engines. Ids are the host's; a stopped id may be started again.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::arguments::{EngineArgs, EngineConfig};
use super::handover::Neighbours;
use super::instance::{self, Control};

/// A line of input.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(
    tag = "op",
    rename_all = "camelCase",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
enum Order {
    Start {
        id: String,
        address: SocketAddr,
        args: Vec<String>,
    },
    Drain {
        id: String,
        grace_seconds: Option<f64>,
    },
    Stop {
        id: String,
    },
    FreezeMetrics {
        id: Option<String>,
        frozen: bool,
    },
}

/// A line of output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "camelCase")]
enum Notice {
    Listening {
        id: String,
    },
    Drained {
        id: String,
    },
    Failed {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<String>,
        error: String,
    },
}

/// The engines of this process.
struct Host {
    engines: BTreeMap<String, Hosted>,
    neighbours: Neighbours,
    notices: Notices,
    frozen: bool,
    /// Tells the generations of one id apart.
    started: u64,
}

struct Hosted {
    generation: u64,
    drain: CancellationToken,
    grace: watch::Sender<Option<Duration>>,
    frozen: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Drop for Hosted {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves engines until there are no more orders. Orders and notices are lines without their ends.
pub async fn run(
    mut orders: mpsc::UnboundedReceiver<String>,
    notices: mpsc::UnboundedSender<String>,
) {
    let (ended, mut ends) = mpsc::unbounded_channel();
    let mut host = Host {
        engines: BTreeMap::new(),
        neighbours: Neighbours::default(),
        notices: Notices(notices),
        frozen: false,
        started: 0,
    };
    loop {
        tokio::select! {
            order = orders.recv() => match order {
                Some(order) if order.trim().is_empty() => {}
                Some(order) => host.obey(&order, &ended),
                None => return,
            },
            Some((id, generation)) = ends.recv() => host.forget(&id, generation),
        }
    }
}

/// Like [`run`] over standard input and output.
///
/// Both are read and written by threads of their own: the runtime would wait at its end for a read that is under way.
///
/// # Errors
/// Output broke.
pub async fn run_on_standard_streams() -> anyhow::Result<()> {
    let (order, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if order.send(line).is_err() {
                return;
            }
        }
    });
    let (notice, mut notices) = mpsc::unbounded_channel::<String>();
    let writer = std::thread::spawn(move || -> std::io::Result<()> {
        let mut output = std::io::stdout().lock();
        while let Some(line) = notices.blocking_recv() {
            writeln!(output, "{line}")?;
            if notices.is_empty() {
                output.flush()?;
            }
        }
        output.flush()
    });
    run(orders, notice).await;
    // All senders are gone, so what is left is written at once.
    let written = tokio::task::spawn_blocking(|| writer.join())
        .await
        .context("writing notices")?;
    written
        .map_err(|_| anyhow::anyhow!("the thread that writes notices panicked"))?
        .context("writing notices")
}

/// Where notices go; nobody listens any more when the host is ending.
#[derive(Debug, Clone)]
struct Notices(mpsc::UnboundedSender<String>);

impl Notices {
    fn tell(&self, notice: &Notice) {
        if let Ok(line) = serde_json::to_string(notice) {
            drop(self.0.send(line));
        }
    }
}

type Ended = mpsc::UnboundedSender<(String, u64)>;

impl Host {
    fn obey(&mut self, line: &str, ended: &Ended) {
        let outcome = match serde_json::from_str::<Order>(line) {
            Ok(Order::Start { id, address, args }) => self
                .start(&id, address, &args, ended)
                .map_err(|error| (Some(id), error)),
            Ok(Order::Drain { id, grace_seconds }) => self
                .drain(&id, grace_seconds)
                .map_err(|error| (Some(id), error)),
            Ok(Order::Stop { id }) => self.stop(&id).map_err(|error| (Some(id), error)),
            Ok(Order::FreezeMetrics { id, frozen }) => self
                .freeze(id.as_deref(), frozen)
                .map_err(|error| (id, error)),
            Err(error) => Err((
                id_of(line),
                anyhow::anyhow!("the order is not valid: {error}"),
            )),
        };
        if let Err((id, error)) = outcome {
            self.notices.tell(&Notice::Failed {
                id,
                error: format!("{error:#}"),
            });
        }
    }

    fn start(
        &mut self,
        id: &str,
        address: SocketAddr,
        args: &[String],
        ended: &Ended,
    ) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.engines.contains_key(id),
            "it is started already; stop it first"
        );
        let mut config = EngineArgs::from_words(args).and_then(|args| args.resolve())?;
        config.name.get_or_insert_with(|| id.to_owned());
        self.started += 1;
        let generation = self.started;
        let drain = CancellationToken::new();
        let (grace, grace_wish) = watch::channel(None);
        let (frozen, frozen_wish) = watch::channel(self.frozen);
        let control = Control {
            drain: drain.clone(),
            grace: grace_wish,
            frozen: frozen_wish,
        };
        let life = live(
            id.to_owned(),
            config,
            address,
            self.neighbours.clone(),
            control,
            self.notices.clone(),
        );
        let (id, ended) = (id.to_owned(), ended.clone());
        let task = {
            let id = id.clone();
            tokio::spawn(async move {
                life.await;
                // Nobody listens when the host is ending.
                drop(ended.send((id, generation)));
            })
        };
        self.engines.insert(
            id,
            Hosted {
                generation,
                drain,
                grace,
                frozen,
                task,
            },
        );
        Ok(())
    }

    fn drain(&self, id: &str, grace_seconds: Option<f64>) -> anyhow::Result<()> {
        let engine = self.engine(id)?;
        if let Some(seconds) = grace_seconds {
            let grace = Duration::try_from_secs_f64(seconds).with_context(|| {
                format!("graceSeconds is {seconds}, a number from 0 is expected")
            })?;
            engine.grace.send_replace(Some(grace));
        }
        engine.drain.cancel();
        Ok(())
    }

    fn stop(&mut self, id: &str) -> anyhow::Result<()> {
        self.engine(id)?;
        self.engines.remove(id);
        Ok(())
    }

    fn freeze(&mut self, id: Option<&str>, frozen: bool) -> anyhow::Result<()> {
        match id {
            Some(id) => {
                self.engine(id)?.frozen.send_replace(frozen);
            }
            None => {
                // Engines that start later stand still too.
                self.frozen = frozen;
                for engine in self.engines.values() {
                    engine.frozen.send_replace(frozen);
                }
            }
        }
        Ok(())
    }

    fn engine(&self, id: &str) -> anyhow::Result<&Hosted> {
        self.engines
            .get(id)
            .context("no such engine is running; start it first")
    }

    fn forget(&mut self, id: &str, generation: u64) {
        if self
            .engines
            .get(id)
            .is_some_and(|engine| engine.generation == generation)
        {
            self.engines.remove(id);
        }
    }
}

async fn live(
    id: String,
    config: EngineConfig,
    address: SocketAddr,
    neighbours: Neighbours,
    control: Control,
    notices: Notices,
) {
    let on_listening = {
        let (id, notices) = (id.clone(), notices.clone());
        move |_| notices.tell(&Notice::Listening { id })
    };
    let notice = match instance::run(config, address, neighbours, control, on_listening).await {
        Ok(()) => Notice::Drained { id },
        Err(error) => Notice::Failed {
            id: Some(id),
            error: format!("{:#}", anyhow::Error::from(error)),
        },
    };
    notices.tell(&notice);
}

/// The id of a line that is no order, if it has one.
fn id_of(line: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Named {
        id: Option<String>,
    }
    serde_json::from_str::<Named>(line).ok()?.id
}
