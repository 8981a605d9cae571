//! Claim templates, and who shares the claims.

use std::collections::BTreeSet;

use coppice_operator_api::PodCliqueSet;
use coppice_operator_api::sharing::SharingScope;
use coppice_operator_plan::ids::CliqueName;

use super::names::{LONGEST_LABEL, group_index_digits, pod_index_digits, set_index_digits};
use super::{clique_path, group_path};
use crate::admission::field::FieldError;

/// Every name of a claim is a name in pods, too, and has to be a DNS label.
fn entry_name(
    path: &str,
    share: (&str, SharingScope),
    owner: usize,
    index: usize,
    errors: &mut Vec<FieldError>,
) {
    let (name, scope) = share;
    if name.is_empty() {
        return;
    }
    let field = format!("{path}.name");
    if let Err(wrong) = CliqueName::new(name) {
        errors.push(FieldError::invalid(field, name, wrong.problem));
        return;
    }
    let which = match scope {
        SharingScope::AllReplicas => "all".len(),
        SharingScope::PerReplica => index,
    };
    let length = owner + which + name.len() + 2;
    if length > LONGEST_LABEL {
        let rule = format!(
            "leads to a claim with a name of {length} characters at the replicas asked for, and {LONGEST_LABEL} is the limit: shorten a name, or ask for fewer replicas"
        );
        errors.push(FieldError::invalid(field, name, rule));
    }
}

pub(super) fn check(set: &PodCliqueSet, errors: &mut Vec<FieldError>) {
    let template = &set.spec.template;
    let mut own = BTreeSet::new();
    for (position, claim) in template
        .resource_claim_templates
        .iter()
        .flatten()
        .enumerate()
    {
        let path = format!("spec.template.resourceClaimTemplates[{position}]");
        if claim.name.is_empty() {
            let rule = "names the template for resourceSharing: write it";
            errors.push(FieldError::required(format!("{path}.name"), rule));
        } else if !own.insert(claim.name.as_str()) {
            let rule = "is the name of another claim template: rename one of them";
            errors.push(FieldError::duplicate(
                format!("{path}.name"),
                &claim.name,
                rule,
            ));
        }
        let spec = claim.template_spec.spec.as_ref();
        let devices = spec.and_then(|spec| spec.devices.as_ref());
        if devices
            .and_then(|devices| devices.requests.as_ref())
            .is_none_or(Vec::is_empty)
        {
            let rule = "a claim asks for at least one device: add a request";
            errors.push(FieldError::required(
                format!("{path}.templateSpec.spec.devices.requests"),
                rule,
            ));
        }
    }
    let cliques: BTreeSet<&str> = template
        .cliques
        .iter()
        .map(|clique| clique.name.as_str())
        .collect();
    let groups: BTreeSet<&str> = template
        .scaling_groups()
        .iter()
        .map(|group| group.name.as_str())
        .collect();

    let set_name = set.metadata.name.as_deref().unwrap_or_default().len();
    let set_index = set_index_digits(set);
    let mut list = List::new("spec.template.resourceSharing".to_owned(), &own);
    for share in template.resource_sharing.iter().flatten() {
        let path = list.entry(&share.name, share.namespace.as_deref(), errors);
        entry_name(
            &path,
            (&share.name, share.scope),
            set_name,
            set_index,
            errors,
        );
        let Some(filter) = &share.filter else {
            continue;
        };
        let by_clique = filter.child_clique_names.as_deref().unwrap_or_default();
        let by_group = filter
            .child_scaling_group_names
            .as_deref()
            .unwrap_or_default();
        if by_clique.is_empty() && by_group.is_empty() {
            let rule = "must name cliques or scaling groups: fill one of the lists, or leave the filter out for all";
            errors.push(FieldError::required(format!("{path}.filter"), rule));
        }
        exist(
            &format!("{path}.filter.childCliqueNames"),
            by_clique,
            &cliques,
            "clique",
            errors,
        );
        exist(
            &format!("{path}.filter.childScalingGroupNames"),
            by_group,
            &groups,
            "scaling group",
            errors,
        );
    }
    for (position, group) in template.scaling_groups().iter().enumerate() {
        let mut list = List::new(format!("{}.resourceSharing", group_path(position)), &own);
        let members = group.clique_names.iter().map(String::as_str).collect();
        let owner = set_name + set_index + group.name.len() + 2;
        let index = group_index_digits(group);
        for share in group.resource_sharing.iter().flatten() {
            let path = list.entry(&share.name, share.namespace.as_deref(), errors);
            entry_name(&path, (&share.name, share.scope), owner, index, errors);
            let Some(filter) = &share.filter else {
                continue;
            };
            let names = filter.child_clique_names.as_deref().unwrap_or_default();
            if names.is_empty() {
                let rule = "must name members of the group: fill childCliqueNames, or leave the filter out for all";
                errors.push(FieldError::required(format!("{path}.filter"), rule));
            }
            exist(
                &format!("{path}.filter.childCliqueNames"),
                names,
                &members,
                "member of the group",
                errors,
            );
        }
    }
    for (position, clique) in template.cliques.iter().enumerate() {
        let mut list = List::new(format!("{}.resourceSharing", clique_path(position)), &own);
        let mut around = template.scaling_groups().iter();
        let around = around.find(|group| group.clique_names.contains(&clique.name));
        let around = around.map_or(0, |group| group.name.len() + group_index_digits(group) + 2);
        let owner = set_name + set_index + around + clique.name.len() + 2;
        let index = pod_index_digits(clique);
        for share in clique.resource_sharing.iter().flatten() {
            let path = list.entry(&share.name, share.namespace.as_deref(), errors);
            entry_name(&path, (&share.name, share.scope), owner, index, errors);
        }
    }
}

/// One list of shares.
struct List<'a> {
    path: String,
    own: &'a BTreeSet<&'a str>,
    seen: BTreeSet<&'a str>,
    next: usize,
}

impl<'a> List<'a> {
    fn new(path: String, own: &'a BTreeSet<&'a str>) -> Self {
        Self {
            path,
            own,
            seen: BTreeSet::new(),
            next: 0,
        }
    }

    /// Checks what every share has, and returns its path.
    fn entry(
        &mut self,
        name: &'a str,
        namespace: Option<&str>,
        errors: &mut Vec<FieldError>,
    ) -> String {
        let path = format!("{}[{}]", self.path, self.next);
        self.next += 1;
        if name.is_empty() {
            errors.push(FieldError::required(
                format!("{path}.name"),
                "names the claim template: write it",
            ));
        } else if !self.seen.insert(name) {
            let rule = "is shared by another entry of the list: list it once";
            errors.push(FieldError::duplicate(format!("{path}.name"), name, rule));
        }
        if let Some(namespace) =
            namespace.filter(|namespace| !namespace.is_empty() && self.own.contains(name))
        {
            let rule = format!(
                "must be absent, because {name} is one of spec.template.resourceClaimTemplates: take it out"
            );
            errors.push(FieldError::invalid(
                format!("{path}.namespace"),
                namespace,
                rule,
            ));
        }
        path
    }
}

fn exist(
    path: &str,
    names: &[String],
    known: &BTreeSet<&str>,
    what: &str,
    errors: &mut Vec<FieldError>,
) {
    for (position, name) in names.iter().enumerate() {
        if !known.contains(name.as_str()) {
            let rule = format!("is no {what}: name one that exists");
            errors.push(FieldError::not_found(
                format!("{path}[{position}]"),
                name,
                rule,
            ));
        }
    }
}
