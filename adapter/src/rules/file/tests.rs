use std::time::Duration;

use coppice_signals::Signal;

use super::*;

const BOUNDS: Bounds = Bounds {
    window: Duration::from_secs(60),
};

fn wrong(text: &str) -> String {
    read(text.as_bytes(), BOUNDS).unwrap_err().to_string()
}

const FULL: &str = "\
rules:
- name: backlog
  expression: waiting + held_at_router
  selector: app=vllm,role!=prefill
  staleness: 20s
  quorum: 0.5
  unit: count
  whenEmpty: zero
- name: cache_percent_max
  expression: kv_cache_usage
  aggregation: max
  unit: percent
- name: tokens
  expression: output_tokens
  window: 30s
engines:
- name: acme
  tier: worker
  recognisedBy: [acme_*]
  modelLabel: served
  signals:
  - signal: waiting
    series: acme_requests
    labels:
      state: {is: queued}
  - signal: kv_cache_usage
    series: acme_cache
    unit: percent
    aggregation: max
";

#[test]
fn every_field_is_read() {
    let set = read(FULL.as_bytes(), BOUNDS).unwrap();
    assert_eq!(set.names(), ["backlog", "cache_percent_max", "tokens"]);
    let backlog = &set.rules["backlog"];
    assert_eq!(backlog.expression.to_string(), "waiting + held_at_router");
    assert_eq!(backlog.selector.to_string(), "app=vllm,role!=prefill");
    assert_eq!(
        backlog.overrides,
        Overrides {
            aggregate: None,
            window: None,
            stale_after: Some(Duration::from_secs(20)),
            quorum: Some(0.5),
        }
    );
    assert_eq!(backlog.unit, Some(Unit::Count));
    assert_eq!(backlog.when_empty, WhenEmpty::Zero);
    let cache = &set.rules["cache_percent_max"];
    assert_eq!(cache.overrides.aggregate, Some(Aggregate::Max));
    assert_eq!(cache.when_empty, WhenEmpty::Error);
    let window = set.rules["tokens"].overrides.window;
    assert_eq!(window, Some(Duration::from_secs(30)));
    let [mapping] = &set.mappings[..] else {
        panic!("{:?}", set.mappings)
    };
    assert_eq!(
        (mapping.name.as_str(), mapping.tier),
        ("acme", Tier::Worker)
    );
    assert_eq!(mapping.signals[0].signal, Signal::Waiting);
    assert_eq!(mapping.signals[0].unit, Unit::Count);
    assert_eq!(
        mapping.signals[0].labels,
        [("state".to_owned(), LabelCondition::Is("queued".to_owned()))]
    );
    assert_eq!(mapping.signals[1].unit, Unit::Percent);
}

/// A rule whose expression is a gauge, with one line more.
fn rule(line: &str) -> String {
    format!("rules:\n- name: backlog\n  expression: waiting\n{line}\n")
}

#[test]
fn each_mistake_is_told_with_line_field_value_and_next_step() {
    for (text, expected) in [
        (
            rule("  selector: app=a b"),
            "line 4: rules[0].selector is \"app=a b\": ",
        ),
        (
            rule("  aggregation: avg"),
            "line 4: rules[0].aggregation is \"avg\": use one of sum, mean, max, min",
        ),
        (
            rule("  window: 30s"),
            "line 4: rules[0].window is \"30s\": the expression reads nothing over a window: leave it out, or read a rate or a latency",
        ),
        (
            rule("  window: 2m"),
            "line 4: rules[0].window is \"2m\": use a duration between 1s and 60s, such as 30s; the adapter looks back --window at most",
        ),
        (
            rule("  staleness: soon"),
            "line 4: rules[0].staleness is \"soon\": use a duration between 1s and 3600s, such as 30s",
        ),
        (
            rule("  quorum: 80"),
            "line 4: rules[0].quorum is \"80\": use a share between 0 and 1",
        ),
        (
            rule("  unit: seconds"),
            "line 4: rules[0].unit is \"seconds\": the expression is in one of count",
        ),
        (
            rule("  unit: minutes"),
            "line 4: rules[0].unit is \"minutes\": use one of count, share, percent, seconds, milliseconds, microseconds",
        ),
        (
            rule("  whenEmpty: hold"),
            "line 4: rules[0].whenEmpty is \"hold\": use error or zero",
        ),
        (
            rule("- name: backlog\n  expression: running"),
            "line 4: rules[1].name is \"backlog\": use each name once",
        ),
        (
            rule("- name: coppice_backlog\n  expression: running"),
            "line 4: rules[1].name is \"coppice_backlog\": names with coppice_ are built in, use another one",
        ),
        (
            rule("- name: Back-log\n  expression: running"),
            "line 4: rules[1].name is \"Back-log\": use up to 128 lower-case letters, digits and _, a letter first",
        ),
        (
            rule("- name: b\n  expression: running +"),
            "line 5: rules[1].expression is \"running +\": at character 10: write a signal, a metric, a number or a parenthesis here",
        ),
        (
            rule("- name: b\n  expression: coppice_ttft_seconds_p95\n  aggregation: max"),
            "line 6: rules[1].aggregation is \"max\": coppice_ttft_seconds_p95 is aggregated in its own way: leave aggregation out, or read a signal",
        ),
        (
            rule("- name: b\n  expression: kv_cache_usage\n  aggregation: sum"),
            "line 6: rules[1].aggregation is \"sum\": kv_cache_usage needs one of mean, max, min",
        ),
        (
            "engines:\n- name: vllm\n  recognisedBy: [our_]\n  signals: [{signal: waiting, series: a}]\n".to_owned(),
            "line 2: engines[0].name is \"vllm\": this name is built in, use another one",
        ),
        (
            "engines:\n- name: acme\n  recognisedBy: [acme_up]\n  signals:\n  - {signal: waiting, series: a}\n  - {signal: ttft, series: b_bucket}\n".to_owned(),
            "line 6: engines[0].signals[1].series is \"b_bucket\": name the histogram without _bucket, _sum and _count",
        ),
        (
            "engines:\n- name: acme\n  recognisedBy: [acme_up]\n  signals:\n  - signal: waiting\n    series: a\n    labels: {state: {is: a, noneOf: [b]}}\n".to_owned(),
            "line 5: engines[0].signals[0].labels is \"state\": give it exactly one of is, oneOf and noneOf",
        ),
    ] {
        let found = wrong(&text);
        assert!(found.starts_with(expected), "{found}\ninstead of\n{expected}");
        assert_eq!(found.lines().count(), 1, "{found}");
    }
}

#[test]
fn a_text_of_another_form_is_refused_with_its_line() {
    for (text, part) in [
        (rule("  agregation: sum"), "agregation"),
        (rule("  quorum: most"), "floating point"),
        (
            "rules:\n- name: b\n  expression: waiting\n  name: c\n".to_owned(),
            "name",
        ),
    ] {
        let found = wrong(&text);
        assert!(found.starts_with("line 4: "), "{found}");
        assert!(found.contains(part), "{part} is not in {found}");
    }
    assert!(wrong("rules:\n- name: b\n").contains("expression"));
    assert!(
        read(&[0xff, 0xfe], BOUNDS)
            .unwrap_err()
            .to_string()
            .contains("UTF-8")
    );
}

#[test]
fn all_mistakes_are_told_at_once_in_their_order_and_not_without_end() {
    let text =
        "rules:\n- name: A\n  expression: waiting\n  quorum: 2\n- name: b\n  expression: x\n";
    let lines: Vec<_> = wrong(text)
        .lines()
        .map(|line| line.split(':').next().unwrap().to_owned())
        .collect();
    assert_eq!(lines, ["line 2", "line 4", "line 6"]);
    let many: String = (0..50)
        .map(|_| "- {name: A, expression: waiting}\n")
        .collect();
    let found = wrong(&format!("rules:\n{many}"));
    assert!(found.ends_with("\nand 30 more"), "{found}");
    let many: String = (0..257)
        .map(|index| format!("- {{name: r{index}, expression: waiting}}\n"))
        .collect();
    let found = wrong(&format!("rules:\n{many}"));
    assert_eq!(found, "line 258: rules is \"257\": use at most 256");
}

#[test]
fn long_values_are_not_repeated_whole_and_large_files_are_refused() {
    let found = wrong(&rule(&format!("  whenEmpty: {}", "x".repeat(5000))));
    assert!(found.len() < 300, "{}", found.len());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rules.yaml");
    assert!(
        content(&path)
            .unwrap_err()
            .to_string()
            .starts_with("it cannot be read: ")
    );
    std::fs::write(&path, vec![b'#'; 1024 * 1024 + 1]).unwrap();
    assert!(
        content(&path)
            .unwrap_err()
            .to_string()
            .contains("larger than 1048576 bytes")
    );
    std::fs::write(&path, FULL).unwrap();
    assert_eq!(content(&path).unwrap(), FULL.as_bytes());
}
