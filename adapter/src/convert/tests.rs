use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn converted(text: &str) -> String {
    render(text, MINUTE).unwrap_or_else(|error| panic!("{error:#}"))
}

/// One of `externalRules`.
fn external(series: &str, query: &str) -> String {
    converted(&format!(
        "externalRules:\n- seriesQuery: '{series}'\n  metricsQuery: '{query}'\n"
    ))
}

#[test]
fn what_people_scale_engines_on_becomes_signals() {
    let text = converted(
        "\
rules:
- seriesQuery: 'vllm:num_requests_waiting{namespace!=\"\",pod!=\"\"}'
  resources:
    overrides:
      namespace: {resource: namespace}
      pod: {resource: pod}
  name: {as: queue_length}
  metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'
externalRules:
- seriesQuery: 'vllm:kv_cache_usage_perc{model_name=\"org/Llama\"}'
  name: {as: cache}
  metricsQuery: 'max(<<.Series>>{<<.LabelMatchers>>})'
- seriesQuery: 'vllm:generation_tokens_total'
  name: {matches: '^vllm:(.*)_total$', as: '${1}_per_second'}
  metricsQuery: 'sum(rate(<<.Series>>{<<.LabelMatchers>>}[30s]))'
- seriesQuery: 'vllm:time_to_first_token_seconds_bucket'
  name: {as: ttft_p95}
  metricsQuery: 'histogram_quantile(0.95, sum(rate(<<.Series>>{<<.LabelMatchers>>}[1m])) by (le))'
",
    );
    let expected = "\
rules:
# rules[0] in line 2
# It was a metric of objects: ask for this as type External, or for vllm:num_requests_waiting as type Pods.
- name: queue_length
  expression: waiting
# externalRules[0] in line 10
- name: cache
  expression: kv_cache_usage
  selector: \"model_id=org-llama\"
  aggregation: max
# externalRules[1] in line 13
- name: generation_tokens_per_second
  expression: output_tokens
  window: 30s
# externalRules[2] in line 16
- name: ttft_p95
  expression: coppice_ttft_seconds_p95
";
    assert_eq!(text, expected);
}

/// The forms that prometheus-adapter's documents show: a queue by name, without namespaces, and requests per second of each pod.
#[test]
fn the_documented_forms_are_converted() {
    let text = converted(
        "\
externalRules:
- seriesQuery: '{__name__=\"queue_depth\",name!=\"\"}'
  metricsQuery: sum(<<.Series>>{<<.LabelMatchers>>}) by (name)
  resources:
    namespaced: false
rules:
- seriesQuery: 'http_requests_total{kubernetes_namespace!=\"\",kubernetes_pod_name!=\"\"}'
  resources:
    template: \"kubernetes_<<.Resource>>\"
  name:
    matches: \"^(.*)_total\"
    as: \"${1}_per_second\"
  metricsQuery: 'sum(rate(<<.Series>>{<<.LabelMatchers>>}[2m])) by (<<.GroupBy>>)'
resourceRules:
  cpu: {containerLabel: container}
",
    );
    let expected = "\
rules:
# rules[0] in line 7
# It was a metric of objects: ask for this as type External, or for http_requests_total:rate as type Pods.
# It looked back 120 s, this looks back 60 s: start the adapter with --window=120s, and convert again with it.
- name: http_requests_per_second
  expression: rate(http_requests_total)
# externalRules[0] in line 2
# It was one value for each label, which an HPA adds up: this is their sum.
# It was served for every namespace (namespaced: false); here an HPA reads pods of its own namespace.
- name: queue_depth
  expression: series(queue_depth)
# resourceRules are not converted: CPU and memory come from metrics-server
";
    assert_eq!(text, expected);
}

#[test]
fn what_cannot_be_converted_is_a_comment_with_reason_and_next_step() {
    for (series, query, part) in [
        (
            "{__name__=~\"^container_.*\"}",
            "sum(<<.Series>>)",
            "write a rule for each series",
        ),
        ("a", "sum(a) / sum(b)", "write the expression by hand"),
        (
            "a{path=\"/chat\"}",
            "sum(<<.Series>>)",
            "give the series a signal under engines",
        ),
        (
            "a{namespace=\"other\"}",
            "sum(<<.Series>>)",
            "ask in that namespace",
        ),
        (
            "a",
            "max(<<.Series>>) by (name)",
            "decide which one you want",
        ),
        ("a", "count(<<.Series>>)", "the function count"),
        (
            "vllm:time_to_first_token_seconds_bucket",
            "histogram_quantile(0.8, sum(rate(<<.Series>>[1m])) by (le))",
            "use 0.5, 0.9, 0.95 or 0.99",
        ),
        (
            "a_bucket",
            "histogram_quantile(0.9, sum(rate(<<.Series>>[1m])) by (le))",
            "quantiles of a are not served",
        ),
    ] {
        let text = external(series, query);
        assert!(
            text.starts_with("rules: []\n# externalRules[0] in line 2 ("),
            "{text}"
        );
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn names_and_increases_are_kept_as_far_as_rules_have_them() {
    let text = external("vllm:num_requests_running", "avg(<<.Series>>)");
    assert!(
        text.contains("# Its name was vllm:num_requests_running, "),
        "{text}"
    );
    assert!(
        text.contains(
            "- name: vllm_num_requests_running\n  expression: running\n  aggregation: mean\n"
        ),
        "{text}"
    );
    let text = external("errors_total", "sum(increase(<<.Series>>[30s]))");
    assert!(
        text.contains("expression: rate(errors_total) * 30\n  window: 30s\n"),
        "{text}"
    );
    let twice = converted(
        "externalRules:\n- {seriesQuery: a, metricsQuery: sum(a)}\n- {seriesQuery: A, metricsQuery: sum(A)}\n",
    );
    assert!(twice.contains("there is a rule a already"), "{twice}");
    assert_eq!(
        captured("^a_(.*)_total$", "a_b_total"),
        Ok(Some("b".to_owned()))
    );
    assert_eq!(captured("", "a"), Ok(None));
    assert!(captured("^b_(.*)", "a_b_total").is_err());
    assert!(captured("^[a-z]+_(.*)$", "a_b").is_err());
}

#[test]
fn what_is_no_configuration_is_refused_with_the_next_step() {
    let error = render("data:\n  config.yaml: |\n    rules: []\n", MINUTE).unwrap_err();
    assert!(
        error.to_string().contains("not the ConfigMap around it"),
        "{error}"
    );
    assert!(render("rules: {a: 1}", MINUTE).is_err());
    assert_eq!(converted("rules: []"), "rules: []\n");
}
