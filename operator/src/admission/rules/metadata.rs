//! Labels and annotations of templates, by the rules that the API server has for those of objects.

use std::collections::BTreeMap;

use coppice_operator_api::{PodCliqueSet, labels as keys};
use coppice_operator_plan::ids::CliqueName;

use super::names::{LONGEST_LABEL, set_index_digits};
use super::{clique_path, group_path};
use crate::admission::field::FieldError;

/// Bytes of all annotations of one object.
const MOST_ANNOTATIONS: usize = 256 * 1024;

type Map = BTreeMap<String, String>;

pub(super) fn labels(path: &str, labels: Option<&Map>, errors: &mut Vec<FieldError>) {
    for (key, value) in labels.into_iter().flatten() {
        if let Err(problem) = key_problem(key) {
            errors.push(FieldError::invalid(path, key, problem));
        }
        if !value.is_empty() && !is_name(value) {
            let rule = "must be at most 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends";
            errors.push(FieldError::invalid(format!("{path}.{key}"), value, rule));
        }
    }
}

pub(super) fn annotations(path: &str, annotations: Option<&Map>, errors: &mut Vec<FieldError>) {
    let mut bytes = 0;
    for (key, value) in annotations.into_iter().flatten() {
        bytes += key.len() + value.len();
        // Unlike those of labels, their keys may be in any case.
        if let Err(problem) = key_problem(&key.to_lowercase()) {
            errors.push(FieldError::invalid(path, key, problem));
        }
    }
    if bytes > MOST_ANNOTATIONS {
        let rule = format!(
            "are {bytes} bytes together, and {MOST_ANNOTATIONS} is the limit: shorten them"
        );
        errors.push(FieldError::forbidden(path, rule));
    }
}

fn key_problem(key: &str) -> Result<(), &'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_domain = |prefix: &str| prefix.len() <= 253 && prefix.split('.').all(is_domain_part);
    if !is_name(name) {
        Err(
            "the name of a key must be 1 to 63 letters, digits, '-', '_' or '.', with a letter or digit at both ends",
        )
    } else if !prefix.is_none_or(is_domain) {
        Err("the part of a key before '/' must be a domain in lower case, such as example.com")
    } else {
        Ok(())
    }
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63 && bytes.iter().all(is_inner) && is_end(bytes.first()) && is_end(bytes.last())
}

fn is_domain_part(part: &str) -> bool {
    CliqueName::new(part).is_ok()
}

/// The MNNVL group of every level, with its path.
pub(super) fn mnnvl_groups(set: &PodCliqueSet) -> Vec<(String, Place<'_>, &str)> {
    let key = keys::annotations::MNNVL_GROUP;
    let template = &set.spec.template;
    let mut found = Vec::new();
    if let Some(value) = annotation(set.metadata.annotations.as_ref()) {
        found.push((format!("metadata.annotations.{key}"), Place::Set, value));
    }
    for (position, entry) in template.scaling_groups().iter().enumerate() {
        if let Some(value) = annotation(entry.annotations.as_ref()) {
            let path = format!("{}.annotations.{key}", group_path(position));
            found.push((path, Place::Group(&entry.name), value));
        }
    }
    for (position, entry) in template.cliques.iter().enumerate() {
        if let Some(value) = annotation(entry.annotations.as_ref()) {
            let path = format!("{}.annotations.{key}", clique_path(position));
            found.push((path, Place::Clique(&entry.name), value));
        }
    }
    found
}

fn annotation(annotations: Option<&Map>) -> Option<&str> {
    annotations?
        .get(keys::annotations::MNNVL_GROUP)
        .map(String::as_str)
}

/// A level of a set, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place<'a> {
    Set,
    Group(&'a str),
    Clique(&'a str),
}

/// Names of MNNVL groups, which become part of names of ComputeDomains; and none where no domains are made, because its pods
/// would wait for ever.
pub(super) fn mnnvl(set: &PodCliqueSet, is_enabled: bool, errors: &mut Vec<FieldError>) {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    for (path, _, value) in mnnvl_groups(set) {
        if value == keys::MNNVL_NONE {
            continue;
        }
        if let Err(wrong) = CliqueName::new(value) {
            let rule = format!(
                "{}: name a group, or write {}",
                wrong.problem,
                keys::MNNVL_NONE
            );
            errors.push(FieldError::invalid(path, value, rule));
            continue;
        }
        let length = name.len() + set_index_digits(set) + value.len() + 2;
        if !is_enabled {
            let rule = format!(
                "MNNVL is switched off in this cluster: take the annotation out, write {}, or have the operator started with --auto-mnnvl=true",
                keys::MNNVL_NONE
            );
            errors.push(FieldError::invalid(path, value, rule));
        } else if length > LONGEST_LABEL {
            let rule = format!(
                "leads to a ComputeDomain with a name of {length} characters, and {LONGEST_LABEL} is the limit: shorten a name"
            );
            errors.push(FieldError::invalid(path, value, rule));
        }
    }
}
