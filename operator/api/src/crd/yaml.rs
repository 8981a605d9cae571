use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// Name of the file that a definition is kept in: `<group>_<plural>.yaml`.
pub fn file_name(definition: &CustomResourceDefinition) -> String {
    format!(
        "{}_{}.yaml",
        definition.spec.group, definition.spec.names.plural
    )
}

/// A definition as one YAML document, with a leading `---` and keys in alphabetical order.
pub fn to_yaml(definition: &CustomResourceDefinition) -> String {
    let value = serde_json::to_value(definition).unwrap_or(Value::Null);
    let mut out = String::from("---\n");
    write_value(&mut out, &value, 0);
    out
}

/// Writes a map or a list in block style. A list stands at its key's own indentation.
fn write_value(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(map) => {
            for (key, child) in map {
                out.push_str(&" ".repeat(indent));
                write_entry(out, key, child, indent);
            }
        }
        Value::Array(items) => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push_str("- ");
                write_item(out, item, indent);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&scalar(value));
            out.push('\n');
        }
    }
}

fn write_entry(out: &mut String, key: &str, child: &Value, indent: usize) {
    out.push_str(&plain_or_quoted(key));
    match child {
        Value::Object(map) if !map.is_empty() => {
            out.push_str(":\n");
            write_value(out, child, indent + 2);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push_str(":\n");
            write_value(out, child, indent);
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => {
            out.push_str(": ");
            out.push_str(&scalar(child));
            out.push('\n');
        }
    }
}

/// Writes what follows a list's hyphen: a map's first entry stands on the same line.
fn write_item(out: &mut String, item: &Value, indent: usize) {
    match item {
        Value::Object(map) if !map.is_empty() => {
            for (position, (key, child)) in map.iter().enumerate() {
                if position > 0 {
                    out.push_str(&" ".repeat(indent + 2));
                }
                write_entry(out, key, child, indent + 2);
            }
        }
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => {
            out.push_str(&scalar(item));
            out.push('\n');
        }
    }
}

/// A scalar, or a collection in flow style, which is JSON.
fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => plain_or_quoted(text),
        // Bounds of a schema are floating point numbers.
        Value::Number(_) => value.to_string().trim_end_matches(".0").to_owned(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// A string without quotes where YAML cannot take it for anything else, else as a JSON string, which YAML reads too.
fn plain_or_quoted(text: &str) -> String {
    let is_word = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | ' ' | ',' | '(' | ')')
    };
    let word = text.strip_prefix('.').unwrap_or(text);
    let looks_otherwise = [
        "true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf",
    ];
    let is_plain = word.starts_with(|c: char| c.is_ascii_alphabetic())
        && !text.ends_with(' ')
        && text.chars().all(is_word)
        && !looks_otherwise.contains(&word.to_ascii_lowercase().as_str());
    if is_plain {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_reads_back_the_same() {
        let value = json!({
            "plain": "a word",
            "empty": "",
            "looks": ["true", "1", "1e3", "null", "~", "- x", "a: b", "#c", "yes", ".5", ".inf", "@", "it's", "two\nlines", " x", "x "],
            "types": [true, 1, -2.5, null, {}, [], {"a": {"b": [{"c": 1, "d": [2]}]}}],
            "0": {"x-kubernetes-validations": [{"rule": "self > duration('0s')", "message": "\"quoted\" \\ µs"}]},
        });
        let mut text = String::new();
        write_value(&mut text, &value, 0);
        let read: Value =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(read, value, "{text}");
    }
}
