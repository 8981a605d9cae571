//! What the set needs to know about one of its replicas.

use std::collections::BTreeMap;

use super::Truth;
use super::clique::{CliqueStatus, Wanted};
use super::group::GroupStatus;
use crate::hash::TemplateHash;
use crate::ids::{CliqueId, GroupName};
use crate::template::SetTemplate;

/// One set replica, seen from the set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The set's digest by which everything below was judged; after an edit the replica has yet to say something new.
    pub template: Option<TemplateHash>,
    /// Every standalone clique and group that should exist does, with its minimum ready.
    pub is_available: bool,
    /// Available, and everything has reached the set's present template.
    pub is_updated: bool,
    /// Something has an old template.
    pub is_old: bool,
    /// A pod is bound to a node.
    pub has_scheduled: bool,
    /// Something is in breach of its minimum.
    pub is_breached: bool,
    /// Standalone cliques that have reached the present template, and all of them.
    pub cliques: Share,
    /// Groups that have reached the present template, and all of them.
    pub groups: Share,
}

impl Summary {
    /// Whether the replica was judged by this template.
    #[must_use]
    pub fn is_of(&self, template: &SetTemplate) -> bool {
        self.template.as_ref() == Some(template.hash())
    }

    /// What is known under this template: of one judged by another, only what pods there are.
    #[must_use]
    pub fn under(&self, template: &SetTemplate) -> Self {
        let mut summary = self.clone();
        if !self.is_of(template) {
            (summary.is_updated, summary.is_old) = (false, true);
            (summary.cliques.done, summary.groups.done) = (0, 0);
        }
        summary
    }
}

/// A part of a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Those that have come so far.
    pub done: u32,
    /// All of them.
    pub total: u32,
}

impl Share {
    fn add(&mut self, done: bool) {
        self.done += u32::from(done);
        self.total += 1;
    }
}

/// Draws the summary from the statuses of everything that exists in the replica.
#[must_use]
pub fn summarise(
    template: &SetTemplate,
    cliques: &BTreeMap<CliqueId, CliqueStatus>,
    groups: &BTreeMap<GroupName, GroupStatus>,
    is_old: bool,
) -> Summary {
    let mut summary = Summary {
        template: Some(template.hash().clone()),
        is_available: true,
        is_old,
        has_scheduled: cliques.values().any(|clique| clique.scheduled > 0),
        is_breached: cliques
            .values()
            .any(|clique| clique.breach.is == Truth::True)
            || groups.values().any(|group| group.breach.is == Truth::True),
        ..Summary::default()
    };
    for clique in template.standalone() {
        let status = cliques.get(&CliqueId::Standalone(clique.name.clone()));
        summary.is_available &= status.is_some_and(|status| status.ready >= status.minimum);
        summary.cliques.add(status.is_some_and(|status| {
            status.is_converged(Wanted {
                template: clique,
                set_hash: template.hash(),
                strategy: template.strategy(),
                effective: status.effective,
            })
        }));
    }
    for group in template.groups() {
        let status = groups.get(&group.name);
        summary.is_available &= status.is_some_and(|status| status.available >= status.minimum);
        summary
            .groups
            .add(status.is_some_and(|status| status.is_converged(template.hash())));
    }
    summary.is_updated = summary.is_available
        && summary.cliques.done == summary.cliques.total
        && summary.groups.done == summary.groups.total;
    summary
}
