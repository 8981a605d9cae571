//! `startsAfter`, where the start-up type makes it count.

use std::collections::{BTreeMap, BTreeSet};

use coppice_operator_api::PodCliqueSet;
use coppice_operator_api::pod_clique_set::{CliqueStartupType, PodCliqueTemplateSpec};

use super::clique_path;
use crate::admission::field::FieldError;

/// Most names of a cycle that a message holds.
const LONGEST_ROUND: usize = 12;

pub(super) fn check(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let template = &set.spec.template;
    if template.startup_type != CliqueStartupType::Explicit {
        return;
    }
    let known = super::positions(&template.cliques);
    for (position, clique) in template.cliques.iter().enumerate() {
        let mut seen = BTreeSet::new();
        for (entry, parent) in parents(clique).iter().enumerate() {
            let field = format!("{}.spec.startsAfter[{entry}]", clique_path(position));
            if parent.is_empty() {
                errors.push(FieldError::required(
                    field,
                    "names no clique: name one, or take the entry out",
                ));
            } else if *parent == clique.name {
                let rule = "a clique cannot start after itself: take the entry out";
                errors.push(FieldError::invalid(field, parent, rule));
            } else if !known.contains_key(parent.as_str()) {
                let rule = "names no clique of the template: name one of spec.template.cliques";
                errors.push(FieldError::not_found(field, parent, rule));
            } else if !seen.insert(parent) {
                errors.push(FieldError::duplicate(
                    field,
                    parent,
                    "is listed twice: list it once",
                ));
            }
        }
    }
    cycles(&template.cliques, &known, errors);
}

fn parents(clique: &PodCliqueTemplateSpec) -> &[String] {
    clique.spec.starts_after.as_deref().unwrap_or_default()
}

/// Depth first, without recursion, because the template's length is the author's choice. An entry that leads back to a clique whose
/// parents are still being followed closes a cycle; it is reported at that entry, by the names on the way.
fn cycles(
    cliques: &[PodCliqueTemplateSpec],
    known: &BTreeMap<&str, usize>,
    errors: &mut Vec<FieldError>,
) {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        /// Being followed, at that depth.
        Open(usize),
        Done,
    }
    let mut marks = vec![Mark::New; cliques.len()];
    for start in 0..cliques.len() {
        if marks[start] != Mark::New {
            continue;
        }
        // Clique, and its next entry to follow.
        let mut path = vec![(start, 0)];
        marks[start] = Mark::Open(0);
        while let Some((at, entry)) = path.last_mut() {
            let (here, position) = (*at, *entry);
            let Some(parent) = parents(&cliques[here]).get(position) else {
                marks[here] = Mark::Done;
                path.pop();
                continue;
            };
            *entry += 1;
            let Some(&next) = known.get(parent.as_str()).filter(|next| **next != here) else {
                continue;
            };
            match marks[next] {
                Mark::New => {
                    marks[next] = Mark::Open(path.len());
                    path.push((next, 0));
                }
                Mark::Open(depth) => {
                    let field = format!("{}.spec.startsAfter[{position}]", clique_path(here));
                    let round = path[depth..]
                        .iter()
                        .map(|(clique, _)| cliques[*clique].name.as_str());
                    let mut round: Vec<&str> = round.chain([parent.as_str()]).collect();
                    if round.len() > LONGEST_ROUND {
                        drop(round.splice(4..round.len() - 3, ["…"]));
                    }
                    let rule = format!(
                        "closes a cycle in which every clique waits for another to start ({}): take one of these entries out",
                        round.join(" after ")
                    );
                    errors.push(FieldError::invalid(field, parent, rule));
                }
                Mark::Done => {}
            }
        }
    }
}
