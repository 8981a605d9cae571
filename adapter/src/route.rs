//! What a request asks for, read from its method, path and query; and what that is called when rights are checked.
//!
//! Every request has a [`Route`], also one that will be refused: rights are checked first, so that a caller without them learns nothing.

use std::borrow::Cow;

use axum::http::{Method, Uri};

/// The API group that is served.
pub(crate) const GROUP: &str = "external.metrics.k8s.io";
/// Its version.
pub(crate) const VERSION: &str = "v1beta1";

/// A request, understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Route {
    /// What is asked for.
    pub target: Target,
    /// What rights it takes.
    pub attributes: Attributes,
    /// Whether the method is GET.
    pub is_get: bool,
    /// The query parameters, decoded, in order.
    pub parameters: Vec<(String, String)>,
}

/// What can be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Something that does not depend on what is scraped.
    Document(Document),
    /// `/apis/GROUP/VERSION/namespaces/NAMESPACE/METRIC`.
    Metric(MetricPath),
    /// The same with `/explain` behind it: how the value came about.
    Explanation(MetricPath),
    /// Anything else.
    Unknown,
}

/// A document that describes the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Document {
    /// `/`: the paths there are.
    Index,
    /// `/apis`: the groups there are.
    Groups,
    /// `/apis/GROUP`.
    Group,
    /// `/apis/GROUP/VERSION`: the resources, that is, metric names.
    Resources,
    /// `/version`.
    Version,
    /// `/openapi/v2`.
    OpenApiV2,
    /// `/openapi/v3`: which documents there are.
    OpenApiV3Index,
    /// `/openapi/v3/apis/GROUP/VERSION`.
    OpenApiV3,
}

/// Which metric is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricPath {
    /// The namespace as in the path.
    pub namespace: String,
    /// The name as in the path; upper and lower case are the same metric.
    pub name: String,
}

/// What rights are checked against.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Attributes {
    /// A path that is no resource.
    Path {
        /// The path.
        path: String,
        /// The method, lower case.
        verb: String,
    },
    /// A resource of the group.
    Resource {
        /// Empty for a request across namespaces.
        namespace: String,
        /// `list` for a value, as the Go servers call it, `get` for one with a name, or what the method does.
        verb: &'static str,
        /// The metric's name, lower case.
        resource: String,
        /// What follows the metric's name; empty when nothing does.
        name: String,
    },
}

/// Path segment that asks how a value came about.
pub(crate) const EXPLAIN: &str = "explain";

impl Route {
    /// Reads a request. `None` when the path or query holds escapes that decode to no text.
    pub(crate) fn parse(method: &Method, uri: &Uri) -> Option<Self> {
        let segments: Vec<String> = uri
            .path()
            .split('/')
            .filter(|segment| !segment.is_empty())
            .map(|segment| decode(segment, false).map(Cow::into_owned))
            .collect::<Option<_>>()?;
        let parameters = parameters(uri.query().unwrap_or_default())?;
        let is_watch = parameters
            .iter()
            .any(|(key, value)| key == "watch" && matches!(value.as_str(), "true" | "1" | ""));
        let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
        let (target, attributes) = match parts.as_slice() {
            [
                "apis",
                GROUP,
                VERSION,
                "namespaces",
                namespace,
                metric,
                rest @ ..,
            ] => {
                let path = MetricPath {
                    namespace: (*namespace).to_owned(),
                    name: (*metric).to_owned(),
                };
                let target = match rest {
                    [] => Target::Metric(path),
                    [EXPLAIN] => Target::Explanation(path),
                    _ => Target::Unknown,
                };
                (target, resource(method, is_watch, namespace, metric, rest))
            }
            ["apis", GROUP, VERSION, metric, rest @ ..] => (
                Target::Unknown,
                resource(method, is_watch, "", metric, rest),
            ),
            other => {
                let target = match other {
                    [] => Target::Document(Document::Index),
                    ["apis"] => Target::Document(Document::Groups),
                    ["apis", GROUP] => Target::Document(Document::Group),
                    ["apis", GROUP, VERSION] => Target::Document(Document::Resources),
                    ["version"] => Target::Document(Document::Version),
                    ["openapi", "v2"] => Target::Document(Document::OpenApiV2),
                    ["openapi", "v3"] => Target::Document(Document::OpenApiV3Index),
                    ["openapi", "v3", "apis", GROUP, VERSION] => {
                        Target::Document(Document::OpenApiV3)
                    }
                    _ => Target::Unknown,
                };
                let path = uri.path().to_owned();
                (
                    target,
                    Attributes::Path {
                        path,
                        verb: method.as_str().to_ascii_lowercase(),
                    },
                )
            }
        };
        Some(Self {
            target,
            attributes,
            is_get: method == Method::GET,
            parameters,
        })
    }

    /// Whether a watch is asked for, which no metric offers.
    pub(crate) fn is_watch(&self) -> bool {
        matches!(&self.attributes, Attributes::Resource { verb: "watch", .. })
    }

    /// The first value of a query parameter.
    pub(crate) fn parameter(&self, key: &str) -> Option<&str> {
        self.parameters
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }
}

fn resource(
    method: &Method,
    is_watch: bool,
    namespace: &str,
    metric: &str,
    rest: &[&str],
) -> Attributes {
    let name = rest.first().copied().unwrap_or_default();
    let verb = match *method {
        Method::GET | Method::HEAD if is_watch => "watch",
        Method::GET | Method::HEAD if name.is_empty() => "list",
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if name.is_empty() => "deletecollection",
        Method::DELETE => "delete",
        _ => "unknown",
    };
    Attributes::Resource {
        namespace: namespace.to_owned(),
        verb,
        resource: metric.to_ascii_lowercase(),
        name: name.to_owned(),
    }
}

fn parameters(query: &str) -> Option<Vec<(String, String)>> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Some((
                decode(key, true)?.into_owned(),
                decode(value, true)?.into_owned(),
            ))
        })
        .collect()
}

/// Resolves `%XX`, and `+` as a blank where `is_query`. `None` for a broken escape or bytes that are not UTF-8.
pub(crate) fn decode(text: &str, is_query: bool) -> Option<Cow<'_, str>> {
    if !(text.contains('%') || is_query && text.contains('+')) {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        match first {
            b'%' => {
                let (digits, tail) = rest.split_at_checked(2)?;
                rest = tail;
                let high = char::from(digits[0]).to_digit(16)?;
                let low = char::from(digits[1]).to_digit(16)?;
                bytes.push(u8::try_from(high * 16 + low).ok()?);
            }
            b'+' if is_query => bytes.push(b' '),
            other => bytes.push(*other),
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(method: &str, uri: &str) -> Route {
        Route::parse(&method.parse().unwrap(), &uri.parse().unwrap()).expect("decodable")
    }

    fn metric(namespace: &str, name: &str) -> MetricPath {
        MetricPath {
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    const BASE: &str = "/apis/external.metrics.k8s.io/v1beta1";

    #[test]
    fn a_metric_is_a_resource_with_the_verb_list() {
        let asked = route(
            "GET",
            &format!(
                "{BASE}/namespaces/serving/vllm%3ANum_Running?labelSelector=model+in+%28a%2Cb%29&limit=500"
            ),
        );
        assert_eq!(
            asked.target,
            Target::Metric(metric("serving", "vllm:Num_Running"))
        );
        assert_eq!(asked.parameter("labelSelector"), Some("model in (a,b)"));
        let expected = Attributes::Resource {
            namespace: "serving".into(),
            verb: "list",
            resource: "vllm:num_running".into(),
            name: String::new(),
        };
        assert_eq!(asked.attributes, expected);
        assert!(asked.is_get && !asked.is_watch());
    }

    #[test]
    fn a_watch_and_other_methods_have_their_own_verbs() {
        assert!(route("GET", &format!("{BASE}/namespaces/a/m?watch=true")).is_watch());
        assert!(!route("GET", &format!("{BASE}/namespaces/a/m?watch=false")).is_watch());
        let posted = route("POST", &format!("{BASE}/namespaces/a/m"));
        assert!(matches!(
            posted.attributes,
            Attributes::Resource { verb: "create", .. }
        ));
        assert!(!posted.is_get);
    }

    #[test]
    fn only_the_namespaced_form_is_a_metric() {
        for path in ["m", "namespaces/a/m/b", "namespaces/a", "namespaces"] {
            assert_eq!(
                route("GET", &format!("{BASE}/{path}")).target,
                Target::Unknown,
                "{path}"
            );
        }
        assert_eq!(
            route("GET", &format!("{BASE}/namespaces/a/m/explain")).target,
            Target::Explanation(metric("a", "m"))
        );
    }

    #[test]
    fn discovery_paths_are_no_resources() {
        for (path, target) in [
            ("/", Target::Document(Document::Index)),
            ("/apis", Target::Document(Document::Groups)),
            ("/apis/", Target::Document(Document::Groups)),
            (
                "/apis/external.metrics.k8s.io",
                Target::Document(Document::Group),
            ),
            (BASE, Target::Document(Document::Resources)),
            ("/version", Target::Document(Document::Version)),
            ("/openapi/v2", Target::Document(Document::OpenApiV2)),
            ("/openapi/v3", Target::Document(Document::OpenApiV3Index)),
            (
                "/openapi/v3/apis/external.metrics.k8s.io/v1beta1",
                Target::Document(Document::OpenApiV3),
            ),
            ("/openapi/v3/apis/other.io/v1", Target::Unknown),
            ("/apis/other.io/v1/namespaces/a/m", Target::Unknown),
        ] {
            let asked = route("GET", path);
            assert_eq!(asked.target, target, "{path}");
            assert_eq!(
                asked.attributes,
                Attributes::Path {
                    path: path.into(),
                    verb: "get".into()
                }
            );
        }
    }

    #[test]
    fn broken_escapes_are_refused() {
        for uri in ["/apis/%zz", "/apis/%f", "/apis?x=%ff"] {
            assert_eq!(
                Route::parse(&Method::GET, &uri.parse().unwrap()),
                None,
                "{uri}"
            );
        }
    }
}
