//! How a rule over a resource is written: a CEL expression and an expression for its message.

use kube::core::{Message, Rule};

/// A rule whose message is computed, so that it can show the value it refuses.
pub(crate) fn rule(condition: &str, message: &str) -> Rule {
    Rule::new(condition).message(Message::Expression(message.to_owned()))
}
