//! The Grafana dashboard of the scaler names only what the scaler exports, and all of it. Tests only.

use std::collections::BTreeSet;

use coppice_testbed::dashboards::{Exported, check, fault, promql};

use crate::metrics::tests::{exported, own, text};

const DASHBOARD: &str = include_str!("../../dashboards/scaler.json");

/// Labels by series name, as a scrape of the program sees them.
fn series() -> Exported {
    let (registry, _) = exported();
    let mut series = Exported::new();
    for line in text(&registry)
        .lines()
        .filter(|line| !line.starts_with('#'))
    {
        // A series is written as a query for it is.
        let (labelled, _) = line.rsplit_once(' ').unwrap();
        for selector in promql::read(labelled).unwrap().selectors {
            series
                .entry(selector.name)
                .or_default()
                .extend(selector.labels);
        }
    }
    series
}

#[test]
fn every_query_names_what_the_scaler_exports_and_every_metric_is_on_it() {
    let shown: BTreeSet<String> = check(DASHBOARD, &series(), &[]);
    let (registry, _) = own();
    let text = text(&registry);
    let families = text.lines().filter_map(|line| {
        line.strip_prefix("# TYPE ")
            .and_then(|line| line.split_once(' '))
            .map(|(name, _)| name)
    });
    for family in families {
        assert!(
            shown.iter().any(|name| name.starts_with(family)),
            "{family} is on no panel"
        );
    }
}

#[test]
fn a_query_for_what_the_scaler_does_not_export_is_found() {
    let series = series();
    let fault = |query: &str| fault(query, "", &series, &[]);
    for good in [
        "scaler_policies",
        "max by (role, limit) (scaler_limited{namespace=~\"$namespace\", role!=\"x, } )\"}) > 0",
        "histogram_quantile(0.99, sum by (le) (rate(scaler_decide_duration_seconds_bucket[$__rate_interval])))",
        "sum(rate(scaler_writes_total{outcome=\"refused\"}[5m] offset 1h)) / 2 or scaler_policies",
    ] {
        assert_eq!(fault(good), None, "{good}");
    }
    for bad in [
        "scaler_polices",
        "scaler_writes",
        "sum by (rol) (scaler_desired_replicas)",
        "scaler_desired_replicas{rol=\"a\"}",
    ] {
        assert!(fault(bad).is_some(), "{bad}");
    }
}
