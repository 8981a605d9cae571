//! What is remembered of each policy between passes.

use std::collections::BTreeMap;

use coppice_runtime::telemetry::chain;
use coppice_scaler_api::{ScalingPolicy, ScalingPolicyStatus};
use coppice_scaler_plan::{History, Profile, Snapshot};
use jiff::Timestamp;
use tracing::{debug, warn};

use crate::observe::endpoints::Endpoints;
use crate::observe::starts::Starts;
use crate::record::Record;
use crate::writers::Writers;

/// What is remembered of one policy.
#[derive(Debug)]
pub(crate) struct Memory {
    /// A policy made anew under the same name starts anew.
    pub(crate) uid: Option<String>,
    pub(crate) history: History,
    pub(crate) record: Record,
    pub(crate) starts: Starts,
    pub(crate) writers: Writers,
    /// What the collector was told to read.
    pub(crate) endpoints: Endpoints,
    pub(crate) profiles: Profiles,
}

/// Profiles as they were read last.
#[derive(Debug, Default)]
pub(crate) struct Profiles {
    pub(crate) read: Option<(Option<i64>, Timestamp)>,
    pub(crate) by_role: BTreeMap<String, Profile>,
    pub(crate) trouble: Option<String>,
}

impl Memory {
    /// The memory of a policy that is seen for the first time: what the status of the last leader tells.
    pub(crate) fn new(policy: &ScalingPolicy, now: Timestamp) -> Self {
        let status = policy.status.as_ref();
        Self {
            uid: policy.metadata.uid.clone(),
            history: history(status, now),
            record: Record::from_status(status),
            starts: Starts::default(),
            writers: Writers::default(),
            endpoints: Endpoints::default(),
            profiles: Profiles::default(),
        }
    }
}

fn history(status: Option<&ScalingPolicyStatus>, now: Timestamp) -> History {
    let Some(text) = status.and_then(|status| status.history.as_deref()) else {
        return History::new(now);
    };
    let snapshot: Snapshot = match serde_json::from_str(text) {
        Ok(snapshot) => snapshot,
        Err(error) => {
            warn!(%error, "the history in the status cannot be read, starting anew");
            return History::new(now);
        }
    };
    History::restore(&snapshot, now).unwrap_or_else(|error| {
        debug!(error = %chain(&error), "starting anew");
        History::new(now)
    })
}
