//! What a scheduler of its own wants of a set: who places its gangs, and in which queue.

use coppice_operator_api::PodCliqueSet;
use coppice_operator_api::pod_clique_set::PodCliqueTemplateSpec;

use super::topology::constrained_paths;
use super::{Around, clique_path, scheduler};
use crate::admission::field::FieldError;
use crate::backends::{kai, volcano};

/// Schedulers that gangs can be sent to by a backend of their own only. Under them pods would start one by one.
const OTHER_BACKENDS: [&str; 3] = ["kai-scheduler", "volcano", "lpx-scheduler"];

/// A Queue of the Volcano scheduler, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Queue {
    /// Nobody looked.
    #[default]
    Unasked,
    /// It takes pods.
    Open,
    /// It does not exist.
    Absent,
    /// It takes none: its state.
    Shut(String),
    /// It cannot be read, and why.
    Unreadable(String),
}

/// One scheduler for all cliques, which this operator knows how to tell of gangs; and what that one wants.
pub(super) fn check(set: &PodCliqueSet, around: &Around, errors: &mut Vec<FieldError>) {
    match around.scheduler {
        None => stock(set, errors),
        Some(own) => only(set, own, errors),
    }
    match around.scheduler {
        Some(kai::SCHEDULER) => errors.extend(kai::queue(set).err()),
        Some(volcano::SCHEDULER) => for_volcano(set, &around.queue, errors),
        Some(_) | None => {}
    }
}

fn stock(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let cliques = &set.spec.template.cliques;
    let Some(first) = cliques.first() else {
        return;
    };
    for (position, clique) in cliques.iter().enumerate() {
        let field = format!("{}.spec.podSpec.schedulerName", clique_path(position));
        let name = scheduler(clique);
        if OTHER_BACKENDS.contains(&name) {
            let rule = "the operator does not have gangs placed by that scheduler: leave schedulerName out, or have the operator started with its --gang-backend";
            errors.push(FieldError::invalid(field, name, rule));
        } else if name != scheduler(first) {
            let rule = format!(
                "must be the same for all cliques, and clique {} goes to {}: a gang is placed by one scheduler",
                first.name,
                scheduler(first)
            );
            errors.push(FieldError::invalid(field, name, rule));
        }
    }
}

fn only(set: &PodCliqueSet, own: &str, errors: &mut Vec<FieldError>) {
    let named = |clique: &PodCliqueTemplateSpec| clique.spec.pod_spec.scheduler_name.clone();
    for (position, clique) in set.spec.template.cliques.iter().enumerate() {
        let name = named(clique).unwrap_or_default();
        if !name.is_empty() && name != own {
            let field = format!("{}.spec.podSpec.schedulerName", clique_path(position));
            let rule = format!("gangs are placed by {own} here: leave schedulerName out");
            errors.push(FieldError::invalid(field, name, rule));
        }
    }
}

fn for_volcano(set: &PodCliqueSet, queue: &Queue, errors: &mut Vec<FieldError>) {
    for path in constrained_paths(set) {
        let rule = "the Volcano scheduler is not told of constraints: take it out, or have the operator started with another --gang-backend";
        errors.push(FieldError::forbidden(path, rule));
    }
    let name = match volcano::queue(set) {
        Ok(name) => name,
        Err(error) => {
            errors.push(error);
            return;
        }
    };
    let field = format!(
        "metadata.annotations.{}",
        coppice_operator_api::labels::annotations::VOLCANO_QUEUE
    );
    match queue {
        Queue::Unasked | Queue::Open => {}
        Queue::Absent => {
            let rule = "there is no Volcano Queue of that name: create it first, or name another";
            errors.push(FieldError::invalid(field, name, rule));
        }
        Queue::Shut(state) => {
            let rule =
                format!("the Volcano Queue is {state} and takes no pods: open it, or name another");
            errors.push(FieldError::invalid(field, name, rule));
        }
        Queue::Unreadable(why) => {
            let rule = format!("Volcano Queue {name} cannot be read: {why}");
            errors.push(FieldError::internal(field, rule));
        }
    }
}

/// The queue of a set that had one stays: the scheduler's groups that are there are never moved.
pub(super) fn check_update(
    old: &PodCliqueSet,
    new: &PodCliqueSet,
    around: &Around,
    errors: &mut Vec<FieldError>,
) {
    let queue: fn(&PodCliqueSet) -> Result<String, FieldError> = match around.scheduler {
        Some(kai::SCHEDULER) => kai::queue,
        Some(volcano::SCHEDULER) => volcano::queue,
        Some(_) | None => return,
    };
    if let (Ok(before), Ok(after)) = (queue(old), queue(new))
        && before != after
    {
        let rule = format!(
            "the queue is {before} and cannot become {after}: create another PodCliqueSet for that"
        );
        errors.push(FieldError::forbidden("metadata", rule));
    }
}
