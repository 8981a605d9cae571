//! The unit `replica`: everything inside one set replica, in one pass.
//!
//! A scale-out is create-all: scaling groups, PodCliques, pods, placement groups and the gang come into being in one pass,
//! each as soon as what it names exists. What has lost its minimum for too long is taken down at the end of a
//! pass, when its status says so; the next passes make it anew.

mod apply;
mod fetch;
mod gangs;
mod judge;
mod status;
mod termination;

use coppice_operator_plan::replica::{Permit, Plan, plan};
use coppice_operator_plan::violations::violations;
use jiff::Timestamp;
use tracing::{debug, warn};

use self::fetch::{Fetched, fetch};
use super::Context;
use super::errors::Errors;
use crate::backends::ReplicaView;
use crate::index::key::{SetKey, Unit};
use crate::queue::Outcome;

/// One pass over a set replica.
pub(crate) async fn pass(cx: &Context, key: &SetKey, replica: u32) -> Outcome {
    let unit = Unit::Replica(key.clone(), replica);
    let Some(fetched) = fetch(&cx.index, key, replica) else {
        // What should not exist is removed by the set, for many replicas at once.
        cx.pacing.level(&unit);
        return Outcome::Done(None);
    };
    let planned = decide(&fetched);
    debug!(?unit, report = ?planned.report, creates = planned.create.len(), deletes = planned.delete.len(), "planned");
    let mut errors = Errors::default();
    apply::objects(cx, &fetched, &planned, &mut errors).await;
    apply::claims(cx, &fetched, &planned, &mut errors).await;
    apply::removals(cx, &fetched, &planned, &mut errors).await;
    let placement = cx.backend.place(view(&fetched, &planned));
    apply::pods(cx, &fetched, &planned, &placement, &mut errors).await;
    apply::placement(cx, &fetched, placement, &mut errors).await;

    // The rest describes what is there now, own writes included.
    let Some(fetched) = fetch(&cx.index, key, replica) else {
        return Outcome::Done(None);
    };
    let planned = decide(&fetched);
    gangs::sync(cx, &fetched, &planned, &mut errors).await;
    let judged = judge::judge(&fetched, &planned);
    let ending = termination::decide(&fetched, &judged);
    let failures = errors.count();
    let wake = status::report(cx, &fetched, &planned, &judged, &ending, &mut errors, &unit).await;
    if errors.count() == failures {
        termination::apply(cx, &fetched, &ending, &mut errors).await;
    }
    cx.backend.look_at(key, replica);
    if let Some(first) = errors.first()
        && errors.outcome() == Some(Outcome::Failed)
    {
        cx.metrics
            .failed("replica", errors.category().unwrap_or("None"));
        warn!(
            namespace = key.namespace(),
            name = key.name(),
            replica,
            error = first,
            "a set replica is not as it should be"
        );
    }
    errors.outcome().unwrap_or(Outcome::Done(wake))
}

fn decide(fetched: &Fetched) -> Plan {
    let template = &fetched.set.template;
    let permit = Permit {
        may_update: fetched.may_update,
    };
    let planned = plan(template, &fetched.observed, permit, Timestamp::now());
    debug_assert_eq!(
        violations(template, &fetched.observed, fetched.may_update, &planned),
        []
    );
    planned
}

fn view<'a>(fetched: &'a Fetched, planned: &'a Plan) -> ReplicaView<'a> {
    ReplicaView {
        scope: fetched.scope(),
        plan: planned,
        observed: &fetched.observed,
        shelf: &fetched.entry.shelf,
    }
}
