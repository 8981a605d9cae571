//! JSON that is the same text for the same meaning, and comparison of what is wanted with what a server stores.

use std::fmt::Write;

use kube_quantity::ParsedQuantity;
use serde_json::Value;

/// Renders only what is set, with map keys sorted: nulls and empty maps and lists are left out, because clients differ in
/// whether they send them.
pub(crate) fn text(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().filter(|(_, value)| is_set(value)).collect();
            entries.sort_by_key(|(key, _)| *key);
            out.push('{');
            for (position, (key, value)) in entries.into_iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_scalar(out, &Value::String(key.clone()));
                out.push(':');
                write_value(out, value);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                if position > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            write_scalar(out, value)
        }
    }
}

fn write_scalar(out: &mut String, value: &Value) {
    write!(out, "{value}").expect("writing to a string cannot fail");
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(map) => map.values().any(is_set),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
    }
}

/// Whether everything that `wanted` sets is in `stored`, which may hold more: defaults, and fields of others.
///
/// Lists must have the same length. Quantities are compared by value, as the server may have written them anew.
pub(crate) fn holds(stored: &Value, wanted: &Value) -> bool {
    match (stored, wanted) {
        (stored, Value::Object(wanted)) => wanted
            .iter()
            .filter(|(_, value)| is_set(value))
            .all(|(key, value)| stored.get(key).is_some_and(|stored| holds(stored, value))),
        (Value::Array(stored), Value::Array(wanted)) => {
            stored.len() == wanted.len()
                && stored
                    .iter()
                    .zip(wanted)
                    .all(|(stored, wanted)| holds(stored, wanted))
        }
        (Value::String(stored), Value::String(wanted)) => {
            stored == wanted || same_quantity(stored, wanted)
        }
        (stored, wanted) => stored == wanted,
    }
}

fn same_quantity(one: &str, other: &str) -> bool {
    let parse = |text: &str| ParsedQuantity::try_from(text).ok();
    parse(one)
        .zip(parse(other))
        .is_some_and(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_same_meaning_is_the_same_text() {
        let one = json!({"b": [1, {"y": null, "x": "q\"uote"}], "a": {"empty": {}, "list": []}, "c": false});
        let other: Value =
            serde_json::from_str(r#"{"c":false,"b":[1,{"x":"q\"uote"}],"n":null}"#).unwrap();
        assert_eq!(text(&one), text(&other));
        assert_eq!(text(&one), r#"{"b":[1,{"x":"q\"uote"}],"c":false}"#);
    }

    #[test]
    fn stored_objects_may_hold_more_but_not_other_things() {
        let stored = json!({"ports": [{"port": 80, "protocol": "TCP"}], "cpu": "1", "extra": true});
        assert!(holds(
            &stored,
            &json!({"ports": [{"port": 80}], "cpu": "1000m"})
        ));
        assert!(!holds(&stored, &json!({"ports": [{"port": 81}]})));
        assert!(!holds(
            &stored,
            &json!({"ports": [{"port": 80}, {"port": 81}]})
        ));
        assert!(!holds(&stored, &json!({"missing": 1})));
    }
}
