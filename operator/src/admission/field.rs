//! A refused field: where it is, what it holds, which rule it breaks and what to do about it.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// Most characters of a path, of a value and of a rule in a message. Names, which are parts of all three, are as long as their author
/// likes until a rule has looked at them.
const PATH: usize = 400;
const SHOWN: usize = 160;
const RULE: usize = 600;

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    /// Path of the field: dots, and `[i]` for a place in a list.
    pub(crate) field: String,
    /// What kind of mistake it is.
    pub(crate) kind: Kind,
    /// What the field holds, where that helps.
    value: Option<Value>,
    /// The rule, and the next step.
    detail: String,
}

/// Kinds of mistakes, as Kubernetes names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It must be there.
    Required,
    /// The value breaks a rule.
    Invalid,
    /// Another one has the same value.
    Duplicate,
    /// It must not be there, or not change.
    Forbidden,
    /// It names something that does not exist.
    NotFound,
    /// It could not be checked.
    Internal,
}

impl Kind {
    fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }

    /// The machine-readable reason in a cause of a `Status`.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::Duplicate => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }
}

impl FieldError {
    pub(crate) fn required(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(field, Kind::Required, None, detail)
    }

    pub(crate) fn invalid(
        field: impl Into<String>,
        value: impl Serialize,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(field, Kind::Invalid, Some(json(value)), detail)
    }

    pub(crate) fn duplicate(
        field: impl Into<String>,
        value: impl Serialize,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(field, Kind::Duplicate, Some(json(value)), detail)
    }

    pub(crate) fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(field, Kind::Forbidden, None, detail)
    }

    pub(crate) fn not_found(
        field: impl Into<String>,
        value: impl Serialize,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(field, Kind::NotFound, Some(json(value)), detail)
    }

    pub(crate) fn internal(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(field, Kind::Internal, None, detail)
    }

    fn new(
        field: impl Into<String>,
        kind: Kind,
        value: Option<Value>,
        detail: impl Into<String>,
    ) -> Self {
        Self {
            field: cut(field.into(), PATH),
            kind,
            value,
            detail: cut(detail.into(), RULE),
        }
    }

    /// Everything but the path, which a cause of a `Status` has in a field of its own.
    pub(crate) fn body(&self) -> String {
        let mut text = self.kind.text().to_owned();
        if let Some(value) = &self.value {
            text.push_str(": ");
            text.push_str(&shown(value));
        }
        text.push_str(": ");
        text.push_str(&self.detail);
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

fn json(value: impl Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// The value as JSON, cut where it would drown the rule.
pub(crate) fn shown(value: impl Serialize) -> String {
    cut(json(value).to_string(), SHOWN)
}

fn cut(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The first `most` errors as one text: alone, or in brackets with commas between them, and how many more there are.
pub(crate) fn joined(errors: &[FieldError], most: usize) -> String {
    if let [one] = errors {
        return one.to_string();
    }
    let texts: Vec<String> = errors.iter().take(most).map(ToString::to_string).collect();
    let more = match errors.len() - texts.len() {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    format!("[{}{more}]", texts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reads_as_the_api_servers_own() {
        let errors = [
            FieldError::invalid("spec.replicas", -1, "must be 0 or more"),
            FieldError::required("a.b[0]", "write it"),
            FieldError::duplicate("n", "x\"y", "rename one"),
            FieldError::forbidden("f", "take it out"),
        ];
        assert_eq!(
            joined(&errors, 9),
            "[spec.replicas: Invalid value: -1: must be 0 or more, a.b[0]: Required value: write it, \
             n: Duplicate value: \"x\\\"y\": rename one, f: Forbidden: take it out]"
        );
        assert_eq!(joined(&errors[3..], 9), "f: Forbidden: take it out");
        assert_eq!(
            joined(&errors, 1),
            "[spec.replicas: Invalid value: -1: must be 0 or more, and 3 more]"
        );
    }

    #[test]
    fn what_is_long_is_cut_between_characters() {
        let long = "ä".repeat(1_000_000);
        let error = FieldError::invalid(&long, &long, &long);
        assert!(error.to_string().chars().count() < PATH + SHOWN + RULE + 40);
        let error = FieldError::invalid("f", &long, "rule");
        let text = error.to_string();
        assert!(text.ends_with("ä…: rule"), "{text}");
        assert!(text.chars().count() < SHOWN + 40);
    }
}
