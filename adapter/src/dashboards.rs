//! The Grafana dashboards of the repository, held against what is exported: every query of every panel reads metrics that exist, by
//! labels that they have.

use std::collections::BTreeSet;

use coppice_exposition::Limits;
use coppice_testbed::dashboards::{Exported, check, fault};

use crate::metrics::Measured;

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
    let shown = check(
        include_str!("../../dashboards/adapter.json"),
        &exported,
        &OF_TARGETS,
    );
    let shown: BTreeSet<_> = shown.iter().map(|name| family(name)).collect();
    let hidden: Vec<_> = exported
        .keys()
        .filter(|name| !shown.contains(family(name)))
        .collect();
    assert!(hidden.is_empty(), "no panel shows {hidden:?}");
}

/// Bodies of real servers.
const SERVERS: [&[u8]; 4] = [
    include_bytes!("../signals/testdata/vllm-0.33.0-busy-t1.txt"),
    include_bytes!("../signals/testdata/sglang-0.5.23-busy-t1.txt"),
    include_bytes!("../signals/testdata/llamacpp-b11549-busy-t1.txt"),
    include_bytes!("../signals/testdata/dynamo-frontend-1.6.1-pd-busy-t1.txt"),
];

/// Bodies of `coppice-loadtest engine` and `coppice-loadtest gateway` after two requests.
const SIMULATED: [&[u8]; 2] = [
    include_bytes!("dashboards/testdata/coppice-engine.txt"),
    include_bytes!("dashboards/testdata/coppice-gateway.txt"),
];

#[test]
fn the_dashboard_of_served_models_shows_what_real_and_simulated_servers_export() {
    let everybody = [SERVERS.as_slice(), SIMULATED.as_slice()].concat();
    let shown = check(
        include_str!("../../dashboards/serving.json"),
        &exported(&everybody),
        &OF_TARGETS,
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
        assert!(
            fault(query, legend, &exported, &OF_TARGETS).is_some(),
            "{query}"
        );
    }
    let good = "sum by (pod, model_name) (vllm:num_requests_waiting{namespace=\"a\"})";
    let fault = fault(good, "{{model_name}} {{pod}}", &exported, &OF_TARGETS);
    assert_eq!(fault, None);
}
