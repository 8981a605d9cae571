//! `check`: a rules file, without a cluster: what the adapter would make of it, or what is wrong with it.

use anyhow::Context;

use super::{Bounds, Rule, RuleSet, file};
use crate::settings::CheckArgs;

/// Reads the file and says how each rule is understood.
///
/// # Errors
/// What is wrong with it, line by line.
pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<String> {
    let bounds = Bounds {
        window: args.window,
    };
    let wrong = || format!("{} is refused", args.file.display());
    let content = file::content(&args.file).with_context(wrong)?;
    let set = file::read(&content, bounds).with_context(wrong)?;
    Ok(render(&set))
}

fn render(set: &RuleSet) -> String {
    let mut text = String::new();
    for rule in set.rules.values() {
        text.push_str(&describe(rule));
        text.push('\n');
    }
    for mapping in &set.mappings {
        let signals: Vec<_> = mapping
            .signals
            .iter()
            .map(|mapped| format!("{} from {}", mapped.signal, mapped.series))
            .collect();
        line(&mut text, "engine", &mapping.name);
        line(&mut text, "  known by", &mapping.recognised_by.join(", "));
        line(&mut text, "  signals", &signals.join(", "));
        text.push('\n');
    }
    let (rules, engines) = (set.rules.len(), set.mappings.len());
    text.push_str(&format!("{rules} rules and {engines} engines can be used"));
    text
}

/// A rule as it is understood, with what is left to the adapter's settings.
fn describe(rule: &Rule) -> String {
    let Rule {
        name,
        expression,
        selector,
        overrides,
        unit,
        when_empty,
    } = rule;
    let mut text = String::new();
    line(&mut text, "rule", name);
    line(&mut text, "  expression", &expression.to_string());
    for input in expression.inputs() {
        let aggregate = overrides
            .aggregate
            .or_else(|| input.aggregates().first().copied());
        let how = aggregate.map_or_else(
            || "as it is served".to_owned(),
            |aggregate| format!("{aggregate} over endpoints"),
        );
        let over = if input.is_windowed() {
            let window = overrides
                .window
                .map_or_else(|| "--window".to_owned(), |window| format!("{window:?}"));
            format!(", looking back {window}")
        } else {
            String::new()
        };
        line(&mut text, "  reads", &format!("{input}: {how}{over}"));
    }
    if !selector.is_everything() {
        line(&mut text, "  selector", &selector.to_string());
    }
    let staleness = overrides.stale_after.map_or_else(
        || "--stale-after".to_owned(),
        |staleness| format!("{staleness:?}"),
    );
    line(&mut text, "  staleness", &staleness);
    let quorum = overrides
        .quorum
        .map_or_else(|| "--quorum".to_owned(), |quorum| quorum.to_string());
    line(&mut text, "  quorum", &quorum);
    if let Some(unit) = unit {
        line(&mut text, "  unit", unit.name());
    }
    line(&mut text, "  when empty", when_empty.name());
    text
}

fn line(text: &mut String, key: &str, value: &str) {
    text.push_str(&format!("{key:<14}{value}\n"));
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn of(content: &str) -> anyhow::Result<String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rules.yaml");
        std::fs::write(&file, content).unwrap();
        check(&CheckArgs {
            file,
            window: Duration::from_secs(60),
        })
    }

    #[test]
    fn each_rule_is_shown_as_it_is_understood() {
        let text = of("\
rules:
- name: backlog
  expression: waiting+(held_at_router)
  selector: app=vllm
  whenEmpty: zero
- name: slow
  expression: ttft
  aggregation: max
  window: 30s
  staleness: 20s
  quorum: 0.5
  unit: milliseconds
engines:
- name: acme
  recognisedBy: [acme_*]
  signals: [{signal: waiting, series: acme_queue}]
")
        .unwrap();
        let expected = "\
rule          backlog
  expression  waiting + held_at_router
  reads       waiting: sum over endpoints
  reads       held_at_router: sum over endpoints
  selector    app=vllm
  staleness   --stale-after
  quorum      --quorum
  when empty  zero

rule          slow
  expression  ttft
  reads       ttft: max over endpoints, looking back 30s
  staleness   20s
  quorum      0.5
  unit        milliseconds
  when empty  error

engine        acme
  known by    acme_*
  signals     waiting from acme_queue

2 rules and 1 engines can be used";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_wrong_file_is_refused_with_each_line() {
        let error = of("rules:\n- name: A\n  expression: waiting\n  quorum: 2\n").unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("rules.yaml is refused: line 2: "), "{text}");
        assert!(
            text.contains("\nline 4: rules[0].quorum is \"2\""),
            "{text}"
        );
    }

    #[test]
    fn the_sample_can_be_used() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/adapter-rules.yaml");
        check(&CheckArgs {
            file: file.into(),
            window: Duration::from_secs(60),
        })
        .unwrap();
    }
}
