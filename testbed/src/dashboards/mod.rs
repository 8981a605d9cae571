//! Grafana dashboards held against what a program exports, for the tests of programs: every query of every panel has to
//! read metrics that exist, by labels that they have.

#![expect(
    clippy::unwrap_used,
    reason = "called from tests, which stop where a dashboard is not one"
)]

pub mod promql;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Metrics and their labels.
pub type Exported = BTreeMap<String, BTreeSet<String>>;

/// What is wrong with a query.
///
/// `added` are labels that Prometheus puts on every series when it scrapes.
#[must_use]
pub fn fault(query: &str, legend: &str, exported: &Exported, added: &[&str]) -> Option<String> {
    let query = match promql::read(query) {
        Ok(query) => query,
        Err(error) => return Some(error),
    };
    if query.selectors.is_empty() {
        return Some("no metric is read".to_owned());
    }
    let mut known: BTreeSet<&str> = added.iter().copied().collect();
    for selector in &query.selectors {
        let Some(labels) = exported.get(&selector.name) else {
            return Some(format!("nothing exports {}", selector.name));
        };
        let mut unknown = selector
            .labels
            .iter()
            .filter(|label| !labels.contains(*label) && !added.contains(&label.as_str()));
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
///
/// # Panics
///
/// With every fault that was found: this is for tests.
#[must_use]
pub fn check(text: &str, exported: &Exported, added: &[&str]) -> BTreeSet<String> {
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
        if let Some(fault) = fault(
            metric,
            &format!("{{{{{}}}}}", label.trim()),
            exported,
            added,
        ) {
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
            if let Some(fault) = fault(query, legend, exported, added) {
                faults.push(format!("{title}: {fault}, in {query}"));
            }
            let read = promql::read(query).unwrap_or_default();
            shown.extend(read.selectors.into_iter().map(|selector| selector.name));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_that_would_show_nothing_is_found() {
        let labels = ["role", "le"].map(str::to_owned);
        let exported: Exported = ["waiting", "took_seconds_bucket"]
            .map(|name| (name.to_owned(), labels.clone().into()))
            .into();
        let fault = |query: &str, legend: &str| fault(query, legend, &exported, &["pod"]);
        for (query, legend, why) in [
            ("waitin", "", "nothing exports waitin"),
            ("waiting_total", "", "nothing exports"),
            ("sum by (rol) (waiting)", "", "has the label rol"),
            ("waiting{rol=\"a\"}", "", "no label rol"),
            ("waiting", "{{rol}}", "has the label rol"),
            ("1 + 1", "", "no metric is read"),
            ("sum(waiting", "", "a ( without its )"),
            ("waiting # a", "", "'#'"),
        ] {
            let found = fault(query, legend).unwrap_or_default();
            assert!(found.contains(why), "{query}: {found:?}");
        }
        let good = "histogram_quantile(0.9, sum by (le, pod) (rate(took_seconds_bucket{role=~\"$role\"}[5m])))";
        assert_eq!(fault(good, "{{role}} {{ pod }}"), None);
    }
}
