//! Which media type to answer with.

use axum::http::HeaderMap;
use axum::http::header::ACCEPT;

/// One clause of an `Accept` header.
#[derive(Debug, Clone, PartialEq)]
struct Clause {
    kind: String,
    parameters: Vec<(String, String)>,
    quality: f32,
}

impl Clause {
    fn parameter(&self, key: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }

    fn is_json(&self) -> bool {
        matches!(
            self.kind.as_str(),
            "application/json" | "application/*" | "*/*"
        )
    }

    /// A more exact clause goes first among those of equal quality.
    fn precision(&self) -> u8 {
        match self.kind.as_str() {
            "*/*" => 0,
            "application/*" => 1,
            _ => 2,
        }
    }
}

/// How a metric can be shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricForm {
    /// The list object.
    Json,
    /// A Table for people.
    Table,
}

/// How discovery can be shown at `/apis`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiscoveryForm {
    /// `APIGroupList`.
    Groups,
    /// `APIGroupDiscoveryList` of `apidiscovery.k8s.io`.
    Aggregated(AggregatedVersion),
}

/// Versions of the aggregated form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AggregatedVersion {
    /// v2.
    V2,
    /// v2beta1, asked for by clusters up to 1.29.
    V2Beta1,
}

/// The form for a metric; `None` when nothing acceptable can be served.
pub(crate) fn metric_form(headers: &HeaderMap) -> Option<MetricForm> {
    first(headers, |clause| match clause.parameter("as") {
        None => Some(MetricForm::Json),
        Some("Table")
            if clause.parameter("g") == Some("meta.k8s.io")
                && clause.parameter("v") == Some("v1") =>
        {
            Some(MetricForm::Table)
        }
        Some(_) => None,
    })
}

/// The form for `/apis`; `None` when nothing acceptable can be served.
pub(crate) fn discovery_form(headers: &HeaderMap) -> Option<DiscoveryForm> {
    first(headers, |clause| match clause.parameter("as") {
        None => Some(DiscoveryForm::Groups),
        Some("APIGroupDiscoveryList") if clause.parameter("g") == Some("apidiscovery.k8s.io") => {
            match clause.parameter("v") {
                Some("v2") => Some(DiscoveryForm::Aggregated(AggregatedVersion::V2)),
                Some("v2beta1") => Some(DiscoveryForm::Aggregated(AggregatedVersion::V2Beta1)),
                _ => None,
            }
        }
        Some(_) => None,
    })
}

/// Whether plain JSON is acceptable.
pub(crate) fn accepts_json(headers: &HeaderMap) -> bool {
    first(headers, |clause| {
        clause.parameter("as").is_none().then_some(())
    })
    .is_some()
}

/// The best clause that `serve` can serve; everything is acceptable when no header says otherwise.
fn first<T>(headers: &HeaderMap, serve: impl Fn(&Clause) -> Option<T>) -> Option<T> {
    let mut clauses: Vec<Clause> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(clause)
        .collect();
    if clauses.is_empty() {
        clauses.push(Clause {
            kind: "*/*".to_owned(),
            parameters: Vec::new(),
            quality: 1.0,
        });
    }
    // Stable: among equals the order of the header decides.
    clauses.sort_by(|a, b| {
        b.quality
            .total_cmp(&a.quality)
            .then(b.precision().cmp(&a.precision()))
    });
    clauses
        .iter()
        .filter(|clause| clause.quality > 0.0 && clause.is_json())
        .find_map(serve)
}

fn clause(text: &str) -> Option<Clause> {
    let mut parts = text.split(';').map(str::trim);
    let kind = parts
        .next()
        .filter(|kind| !kind.is_empty())?
        .to_ascii_lowercase();
    let mut quality = 1.0;
    let mut parameters = Vec::new();
    for part in parts {
        let Some((key, value)) = part.split_once('=') else {
            continue;
        };
        let (key, value) = (
            key.trim().to_ascii_lowercase(),
            value.trim().trim_matches('"'),
        );
        if key == "q" {
            quality = value.parse().unwrap_or(0.0);
        } else {
            parameters.push((key, value.to_owned()));
        }
    }
    Some(Clause {
        kind,
        parameters,
        quality,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accept(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if !value.is_empty() {
            headers.insert(ACCEPT, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_metric_is_json_unless_a_table_is_preferred() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        for (value, form) in [
            ("", Some(MetricForm::Json)),
            ("*/*", Some(MetricForm::Json)),
            (
                "application/vnd.kubernetes.protobuf, */*",
                Some(MetricForm::Json),
            ),
            (
                "application/vnd.kubernetes.protobuf,application/json",
                Some(MetricForm::Json),
            ),
            ("application/vnd.kubernetes.protobuf", None),
            ("text/html", None),
            (table, Some(MetricForm::Table)),
            (
                "application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json",
                Some(MetricForm::Json),
            ),
            (
                "application/json; q=0.5, application/json;as=Table;v=v1;g=meta.k8s.io; q=0.9",
                Some(MetricForm::Table),
            ),
            ("application/json;q=0", None),
        ] {
            assert_eq!(metric_form(&accept(value)), form, "{value}");
        }
    }

    #[test]
    fn the_best_supported_discovery_form_is_chosen() {
        let v2 = DiscoveryForm::Aggregated(AggregatedVersion::V2);
        let v2beta1 = DiscoveryForm::Aggregated(AggregatedVersion::V2Beta1);
        for (value, form) in [
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
                Some(v2),
            ),
            (
                "application/json; as=APIGroupDiscoveryList; v=v2beta1; g=apidiscovery.k8s.io",
                Some(v2beta1),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
                 application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json",
                Some(v2),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json",
                Some(DiscoveryForm::Groups),
            ),
            ("application/json", Some(DiscoveryForm::Groups)),
            ("", Some(DiscoveryForm::Groups)),
            ("application/yaml", None),
        ] {
            assert_eq!(discovery_form(&accept(value)), form, "{value}");
        }
    }
}
