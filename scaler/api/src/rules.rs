//! How a rule over a resource is written: a CEL expression and a message.
//!
//! The API server refuses a definition whose rules or messages *might* cost too much, and takes whatever it cannot bound to be endless: a number
//! turned into text, the key of a map, a field of a filtered list. So messages are made of names with a `maxLength` only; where a
//! list is searched, `map(item, condition, item.name)[0]` keeps the bound of the name that `filter(item, condition)[0].name` loses.

use kube::core::{Message, Rule};

/// A rule whose message is computed, so that it can show what it refuses.
pub(crate) fn rule(condition: &str, message: &str) -> Rule {
    Rule::new(condition).message(Message::Expression(message.to_owned()))
}

/// A rule with a fixed message, because what it refuses has no bounded text; the field that is wrong is told by its path.
pub(crate) fn constant(condition: &str, message: &str, field: &str) -> Rule {
    Rule::new(condition).message(message).field_path(field)
}
