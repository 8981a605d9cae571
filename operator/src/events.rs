//! Kubernetes Events, gathered so that a thousand pods are one line and not a thousand writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use coppice_operator_api::event::EventReason;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::debug;

/// Events of the same reason about the same object within this time are one.
const GATHER: Duration = Duration::from_secs(1);
/// At most this many events are sent per gathering; a flood would help nobody.
const MOST: usize = 20;

/// What is reported, and about what.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Subject {
    kind: String,
    api_version: String,
    namespace: String,
    name: String,
    uid: String,
    reason: EventReason,
}

#[derive(Clone, Debug, Default)]
struct Note {
    count: usize,
    text: String,
    warning: bool,
}

/// Collects events; a task sends them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Events {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    notes: Mutex<BTreeMap<Subject, Note>>,
    noted: Notify,
}

impl Events {
    /// Something ordinary happened to `about`, `count` times; `text` reads on from "n ", e.g. `pods created`.
    pub(crate) fn normal(
        &self,
        about: &ObjectReference,
        reason: EventReason,
        count: usize,
        text: &str,
    ) {
        self.note(about, reason, count, text, false);
    }

    /// Something went wrong with `about`.
    pub(crate) fn warning(&self, about: &ObjectReference, reason: EventReason, text: &str) {
        self.note(about, reason, 1, text, true);
    }

    fn note(
        &self,
        about: &ObjectReference,
        reason: EventReason,
        count: usize,
        text: &str,
        warning: bool,
    ) {
        if count == 0 {
            return;
        }
        let subject = Subject {
            kind: about.kind.clone().unwrap_or_default(),
            api_version: about.api_version.clone().unwrap_or_default(),
            namespace: about.namespace.clone().unwrap_or_default(),
            name: about.name.clone().unwrap_or_default(),
            uid: about.uid.clone().unwrap_or_default(),
            reason,
        };
        let mut notes = self.shared.notes.lock();
        let note = notes.entry(subject).or_default();
        note.count += count;
        text.clone_into(&mut note.text);
        note.warning = warning;
        drop(notes);
        self.shared.noted.notify_one();
    }

    /// Sends what is noted until `draining`. Events are a courtesy: one that is refused is dropped.
    pub(crate) async fn send(self, client: Client, draining: CancellationToken) {
        let reporter = Reporter {
            controller: "podcliqueset-controller".to_owned(),
            instance: None,
        };
        let recorder = Recorder::new(client, reporter);
        loop {
            tokio::select! {
                () = self.shared.noted.notified() => {}
                () = draining.cancelled() => return,
            }
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                () = draining.cancelled() => return,
            }
            let notes = std::mem::take(&mut *self.shared.notes.lock());
            for (subject, note) in notes.into_iter().take(MOST) {
                publish(&recorder, subject, &note).await;
            }
        }
    }
}

async fn publish(recorder: &Recorder, subject: Subject, note: &Note) {
    let about = ObjectReference {
        api_version: Some(subject.api_version),
        kind: Some(subject.kind),
        name: Some(subject.name),
        namespace: Some(subject.namespace),
        uid: Some(subject.uid),
        ..ObjectReference::default()
    };
    let text = if note.warning {
        note.text.clone()
    } else {
        format!("{} {}", note.count, note.text)
    };
    let event = Event {
        type_: if note.warning {
            EventType::Warning
        } else {
            EventType::Normal
        },
        reason: subject.reason.as_str().to_owned(),
        note: Some(text.chars().take(1000).collect()),
        action: "Reconcile".to_owned(),
        secondary: None,
    };
    if let Err(error) = recorder.publish(&event, &about).await {
        debug!(error = %coppice_runtime::telemetry::chain(&error), "an event was not taken");
    }
}
