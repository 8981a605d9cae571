//! The Grafana dashboards of the repository, held against what is exported: every query of every panel reads metrics that exist, by
//! labels that they have.

mod promql;

use std::collections::{BTreeMap, BTreeSet};

use coppice_exposition::Limits;
use serde_json::Value;

use crate::metrics::Measured;

/// Metrics and their labels.
type Exported = BTreeMap<String, BTreeSet<String>>;

/// Labels that Prometheus adds when it scrapes a pod.
const OF_TARGETS: [&str; 5] = ["cluster", "instance", "job", "namespace", "pod"];

fn exported(bodies: &[&[u8]]) -> Exported {
    let mut exported = Exported::new();
    for body in bodies {
        let (samples, report) = coppice_exposition::collect(body, &Limits::default()).unwrap();
        assert_eq!(report.malformed, 0, "{report:?}");
        for sample in samples {
            let labels = exported.entry(sample.name).or_default();
            labels.extend(sample.labels.into_keys());
        }
    }
    exported
}

/// What is wrong with a query.
fn fault(query: &str, legend: &str, exported: &Exported) -> Option<String> {
    let query = match promql::read(query) {
        Ok(query) => query,
        Err(error) => return Some(error),
    };
    if query.selectors.is_empty() {
        return Some("no metric is read".to_owned());
    }
    let mut known: BTreeSet<&str> = OF_TARGETS.into();
    for selector in &query.selectors {
        let Some(labels) = exported.get(&selector.name) else {
            return Some(format!("nothing exports {}", selector.name));
        };
        let mut unknown = selector
            .labels
            .iter()
            .filter(|label| !labels.contains(*label) && !OF_TARGETS.contains(&label.as_str()));
        if let Some(label) = unknown.next() {
            return Some(format!("{} has no label {label}", selector.name));
        }
        known.extend(labels.iter().map(String::as_str));
    }
    let in_legend = legend
        .split("{{")
        .skip(1)
        .filter_map(|rest| rest.split_once("}}"));
    let shown = in_legend.map(|(label, _)| label.trim());
    let mut used = query.grouping.iter().map(String::as_str).chain(shown);
    used.find(|label| !known.contains(label))
        .map(|label| format!("no metric in it has the label {label}"))
}

/// Every panel of a dashboard, those inside rows included.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let nested = |panel: &'_ Value| panel["panels"].as_array().cloned().unwrap_or_default();
    let top = dashboard["panels"].as_array().unwrap();
    assert!(
        top.iter().all(|panel| nested(panel).is_empty()),
        "rows are open"
    );
    top.iter().filter(|panel| panel["type"] != "row").collect()
}

/// Holds a dashboard against what is exported; returns the names of metrics that it shows.
fn check(text: &str, exported: &Exported) -> BTreeSet<String> {
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let mut faults = Vec::new();
    let mut shown = BTreeSet::new();
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        if variable["type"] != "query" {
            continue;
        }
        let query = variable["query"].as_str().unwrap();
        let inner = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.strip_suffix(')'));
        let (metric, label) = inner.unwrap().rsplit_once(',').unwrap();
        if let Some(fault) = fault(metric, &format!("{{{{{}}}}}", label.trim()), exported) {
            faults.push(format!("variable {}: {fault}", variable["name"]));
        }
    }
    let panels = panels(&dashboard);
    let (mut ids, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in &panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64()), "{title}: the id is taken");
        let place = &panel["gridPos"];
        let place = (place["x"].as_u64().unwrap(), place["y"].as_u64().unwrap());
        assert!(places.insert(place), "{title}: the place is taken");
        for field in ["description", "title"] {
            let text = panel[field].as_str().unwrap_or_default();
            assert!(!text.is_empty(), "{title}: no {field}");
        }
        assert!(
            panel["fieldConfig"]["defaults"]["unit"].is_string(),
            "{title}: no unit"
        );
        let targets = panel["targets"].as_array().unwrap();
        assert!(!targets.is_empty(), "{title}: no query");
        for target in targets {
            let query = target["expr"].as_str().unwrap();
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            if let Some(fault) = fault(query, legend, exported) {
                faults.push(format!("{title}: {fault}, in {query}"));
            }
            let read = promql::read(query).unwrap_or_default();
            shown.extend(read.selectors.into_iter().map(|selector| selector.name));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    shown
}

/// The name without what a type adds to it.
fn family(name: &str) -> &str {
    ["_total", "_bucket", "_sum", "_count"]
        .iter()
        .find_map(|suffix| name.strip_suffix(suffix))
        .unwrap_or(name)
}

#[test]
fn the_dashboard_of_the_adapter_shows_what_it_exports_and_all_of_it() {
    let measured = Measured::new();
    let text = coppice_runtime::admin::exposition(&measured.registry).unwrap();
    let exported = exported(&[text.as_bytes()]);
    let shown = check(include_str!("../../../dashboards/adapter.json"), &exported);
    let shown: BTreeSet<_> = shown.iter().map(|name| family(name)).collect();
    let hidden: Vec<_> = exported
        .keys()
        .filter(|name| !shown.contains(family(name)))
        .collect();
    assert!(hidden.is_empty(), "no panel shows {hidden:?}");
}

/// Bodies of real servers.
const SERVERS: [&[u8]; 4] = [
    include_bytes!("../../signals/testdata/vllm-0.33.0-busy-t1.txt"),
    include_bytes!("../../signals/testdata/sglang-0.5.23-busy-t1.txt"),
    include_bytes!("../../signals/testdata/llamacpp-b11549-busy-t1.txt"),
    include_bytes!("../../signals/testdata/dynamo-frontend-1.6.1-pd-busy-t1.txt"),
];

/// Bodies of `coppice-loadtest engine` and `coppice-loadtest gateway` after two requests.
const SIMULATED: [&[u8]; 2] = [
    include_bytes!("testdata/coppice-engine.txt"),
    include_bytes!("testdata/coppice-gateway.txt"),
];

#[test]
fn the_dashboard_of_served_models_shows_what_real_and_simulated_servers_export() {
    let everybody = [SERVERS.as_slice(), SIMULATED.as_slice()].concat();
    let shown = check(
        include_str!("../../../dashboards/serving.json"),
        &exported(&everybody),
    );
    let (real, simulated) = (exported(&SERVERS), exported(&SIMULATED));
    let ours = |name: &&String| name.starts_with("coppice_");
    let others = |name: &&String| name.starts_with("sglang:") || name.starts_with("llamacpp:");
    let unreal: Vec<_> = shown
        .iter()
        .filter(|name| !ours(name) && !real.contains_key(*name))
        .collect();
    assert!(unreal.is_empty(), "no real server exports {unreal:?}");
    let missing: Vec<_> = shown
        .iter()
        .filter(|name| !others(name) && !simulated.contains_key(*name))
        .collect();
    assert!(missing.is_empty(), "no simulated one exports {missing:?}");
    assert!(shown.iter().any(|name| ours(&name)), "{shown:?}");
}

#[test]
fn a_query_that_would_show_nothing_is_found() {
    let exported = exported(&SERVERS);
    for (query, legend) in [
        ("vllm:num_request_waiting", ""),
        ("sum by (model) (vllm:num_requests_waiting)", ""),
        ("vllm:num_requests_waiting{model=\"a\"}", ""),
        ("vllm:num_requests_waiting", "{{model}}"),
        ("rate(vllm:prompt_tokens[5m])", ""),
        ("1 + 1", ""),
    ] {
        assert!(fault(query, legend, &exported).is_some(), "{query}");
    }
    let good = "sum by (pod, model_name) (vllm:num_requests_waiting{namespace=\"a\"})";
    assert_eq!(fault(good, "{{model_name}} {{pod}}", &exported), None);
}
