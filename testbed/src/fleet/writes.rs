//! Writes about pods on their way to the API server: one queue, a bounded number at a time.

use std::collections::VecDeque;

use http::HeaderValue;
use http::header::ACCEPT;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PartialObjectMeta, Patch, PatchParams, Preconditions};
use kube::core::request::Request;
use kube::{Client, Resource};
use serde_json::Value;
use tokio::task::JoinSet;

/// One write.
#[derive(Debug, Clone)]
pub(super) enum Job {
    /// Patch the status.
    Status {
        namespace: String,
        name: String,
        patch: Value,
    },
    /// Remove the object without grace, if it still is the one with this UID.
    Removal {
        namespace: String,
        name: String,
        uid: String,
    },
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The object has this version now; 0 when it is gone.
    Done { version: u64 },
    /// There is no such object any more.
    Gone,
    /// The server will never take it.
    Refused(String),
    /// Worth another try.
    Failed(String),
}

/// The answer to the write about one pod.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) uid: String,
    pub(super) outcome: Outcome,
}

/// The queue of pods that have something to be written, and the writes on their way.
pub(super) struct Writes {
    client: Client,
    limit: usize,
    queue: VecDeque<String>,
    on_their_way: JoinSet<Written>,
    /// Sent so far.
    pub(super) sent: u64,
    /// Failed so far and due again.
    pub(super) retries: u64,
}

impl std::fmt::Debug for Writes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writes")
            .field("queue", &self.queue.len())
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

impl Writes {
    pub(super) fn new(client: Client, limit: usize) -> Self {
        Self {
            client,
            limit: limit.max(1),
            queue: VecDeque::new(),
            on_their_way: JoinSet::new(),
            sent: 0,
            retries: 0,
        }
    }

    /// Puts a pod at the end of the queue.
    pub(super) fn enqueue(&mut self, uid: String) {
        self.queue.push_back(uid);
    }

    /// The next pod to write about, if another write may be sent.
    pub(super) fn turn(&mut self) -> Option<String> {
        if self.on_their_way.len() < self.limit {
            self.queue.pop_front()
        } else {
            None
        }
    }

    pub(super) fn send(&mut self, uid: String, job: Job) {
        self.sent += 1;
        let client = self.client.clone();
        self.on_their_way.spawn(async move {
            Written {
                uid,
                outcome: send(&client, job).await,
            }
        });
    }

    /// Waits for the next answer; for ever while nothing is on its way. Nothing is lost when the wait is given up.
    pub(super) async fn next(&mut self) -> Written {
        loop {
            match self.on_their_way.join_next().await {
                Some(Ok(written)) => return written,
                // A write that panicked says so in the log; there is no answer to wait for.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }
}

async fn send(client: &Client, job: Job) -> Outcome {
    let built = match &job {
        Job::Status {
            namespace,
            name,
            patch,
        } => requests(namespace)
            .patch_subresource(
                "status",
                name,
                &PatchParams::default(),
                &Patch::Strategic(patch),
            )
            .map_err(|e| e.to_string()),
        Job::Removal {
            namespace,
            name,
            uid,
        } => {
            let parameters = DeleteParams {
                grace_period_seconds: Some(0),
                preconditions: Some(Preconditions {
                    uid: Some(uid.clone()),
                    resource_version: None,
                }),
                ..DeleteParams::default()
            };
            requests(namespace)
                .delete(name, &parameters)
                .map_err(|e| e.to_string())
        }
    };
    let mut request = match built {
        Ok(request) => request,
        Err(error) => return Outcome::Refused(error),
    };
    // Only the version is of interest in the answer.
    request.headers_mut().insert(
        ACCEPT,
        HeaderValue::from_static(
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
        ),
    );
    match job {
        Job::Status { .. } => match client.request::<PartialObjectMeta<Pod>>(request).await {
            Ok(pod) => Outcome::Done {
                version: version(pod.metadata.resource_version.as_deref()),
            },
            Err(error) => outcome(error),
        },
        Job::Removal { .. } => match client.request_text(request).await {
            Ok(_) => Outcome::Done { version: 0 },
            Err(error) => outcome(error),
        },
    }
}

fn requests(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace)))
}

fn outcome(error: kube::Error) -> Outcome {
    match error {
        // A conflict is another UID: a successor of the same name.
        kube::Error::Api(status) if status.code == 404 || status.code == 409 => Outcome::Gone,
        kube::Error::Api(status)
            if status.code == 400 || status.code == 403 || status.code == 422 =>
        {
            Outcome::Refused(status.message.clone())
        }
        other => Outcome::Failed(other.to_string()),
    }
}

/// A resource version as a number; they only grow.
pub(super) fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}
