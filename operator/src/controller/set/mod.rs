//! The unit `set`: one PodCliqueSet. Which replicas exist and which one may change, what belongs to the set as a whole, its
//! status, and its end.

mod apply;
mod removal;
mod status;

use std::collections::BTreeMap;
use std::sync::Arc;

use coppice_operator_plan::hash::TemplateHash;
use coppice_operator_plan::set::{Before, Plan, plan};
use coppice_operator_plan::status::Progress;
use coppice_operator_plan::status::summary::Summary;
use jiff::Timestamp;
use tracing::{debug, warn};

use super::Context;
use super::errors::Errors;
use crate::index::entry::{SetEntry, SetRecord};
use crate::index::key::{SetKey, Unit};
use crate::queue::Outcome;
use crate::validated::Validated;

/// One pass over a set.
pub(crate) async fn pass(cx: &Context, key: &SetKey) -> Outcome {
    let unit = Unit::Set(key.clone());
    let Some(entry) = cx.index.set(key) else {
        return Outcome::Done(None);
    };
    // Objects that outlived their set are the garbage collector's.
    let Some(record) = entry.set.clone() else {
        return Outcome::Done(None);
    };
    let mut errors = Errors::default();
    if record.object.metadata.deletion_timestamp.is_some() {
        removal::whole_set(cx, key, &record, &mut errors).await;
        return finish(cx, key, &errors, None);
    }
    let wake = match &record.validated {
        Ok(set) => wanted(cx, &entry, &record, set, &mut errors, &unit).await,
        Err(invalid) => status::refuse(cx, key, &record, invalid, &mut errors).await,
    };
    finish(cx, key, &errors, wake)
}

fn finish(
    cx: &Context,
    key: &SetKey,
    errors: &Errors,
    wake: Option<std::time::Duration>,
) -> Outcome {
    let outcome = errors.outcome().unwrap_or(Outcome::Done(wake));
    if outcome == Outcome::Failed {
        cx.metrics
            .failed("set", errors.category().unwrap_or("None"));
        let error = errors.first().unwrap_or_default();
        warn!(
            namespace = key.namespace(),
            name = key.name(),
            error,
            "a set is not as it should be"
        );
    }
    outcome
}

async fn wanted(
    cx: &Context,
    entry: &SetEntry,
    record: &SetRecord,
    set: &Arc<Validated>,
    errors: &mut Errors,
    unit: &Unit,
) -> Option<std::time::Duration> {
    if !apply::hold(cx, record, errors).await {
        return None;
    }
    apply::objects(cx, entry, set, errors).await;
    apply::claims(cx, entry, set, errors).await;
    let now = Timestamp::now();
    let planned = plan(
        &set.template,
        set.replicas,
        &summaries(entry),
        &before(record),
        now,
    );
    debug!(set = %set.key, replicas = planned.replicas, remove = planned.remove.len(), updating = ?planned.updating, "planned");
    announce(cx, entry, set, &planned);
    removal::replicas(cx, &set.key, &planned.remove, errors).await;
    // A process that has just started knows nothing of replicas that have not been looked at. To count them as unavailable
    // would be a false alarm, so the status stays as it is until each has said something.
    let is_known = record
        .object
        .status
        .as_ref()
        .and_then(|status| status.observed_generation);
    let mut wanted = entry.replicas.range(..set.replicas);
    let is_silent = wanted.any(|(_, replica)| replica.summary.is_none());
    if !entry.reported && is_known.is_some() && is_silent {
        return None;
    }
    cx.index.set_reported(&set.key);
    status::report(cx, record, set, &planned, errors, unit).await
}

/// Replicas that exist, with what they said last.
fn summaries(entry: &SetEntry) -> BTreeMap<u32, Summary> {
    let known = entry.replicas.iter();
    known
        .map(|(index, replica)| (*index, replica.summary.clone().unwrap_or_default()))
        .collect()
}

fn before(record: &SetRecord) -> Before {
    let Some(status) = &record.object.status else {
        return Before::default();
    };
    let hash = status
        .current_generation_hash
        .as_deref()
        .map(TemplateHash::recorded);
    let progress = status
        .update_progress
        .as_ref()
        .zip(hash.clone())
        .map(|(progress, hash)| Progress {
            started: progress
                .update_started_at
                .as_ref()
                .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
            ended: progress.update_ended_at.as_ref().map(|time| time.0),
            set_hash: hash.clone(),
            template_hash: hash,
        });
    let updating = status
        .update_progress
        .as_ref()
        .and_then(|progress| progress.currently_updating.as_ref()?.first());
    let updating = updating.and_then(|current| {
        let since = current
            .update_started_at
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        Some((u32::try_from(current.replica_index).ok()?, since))
    });
    Before {
        progress,
        current: hash,
        updating,
    }
}

/// Tells the replicas what is new: an edit of the set concerns all of them, a turn to update two.
fn announce(cx: &Context, entry: &SetEntry, set: &Validated, planned: &Plan) {
    let updating = planned.updating.map(|(index, _)| index);
    if cx.index.set_updating(&set.key, updating) {
        for index in [entry.updating, updating].into_iter().flatten() {
            cx.queue.mark(&Unit::Replica(set.key.clone(), index));
        }
    }
    let edition = (
        set.object.metadata.uid.clone().unwrap_or_default(),
        set.generation(),
    );
    if cx.index.announced(&set.key, edition) {
        return;
    }
    for index in 0..planned.replicas {
        cx.queue.mark_edited(&Unit::Replica(set.key.clone(), index));
    }
}
